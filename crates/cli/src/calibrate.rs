//! `farindex calibrate`.

use crate::exit::{self, Failure};
use crate::output::Json;
use crate::pool_arg::Place;
use farindex::{Pool, Session};
use farindex_bench::size::parse_duration;
use farindex_fabric::{FabricError, OpKind, RemotePtr};
use farindex_index::linear::read_size::{Network, Probes, best_read};
use farindex_pool::Calibration;
use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{Rng, SeedableRng};
use serde_json::json;
use std::fmt::Write;
use std::rc::Rc;
use std::sync::Barrier;
use std::time::{Duration, Instant};

/// Measure the pool's fabric, and keep the figures with the pool
///
/// Measures the latency of a short READ, and the READs and the bytes that all threads together read in a second.
/// Indexes that choose how much to READ (linear probing) use the figures as soon as they are opened again. Of a pool in
/// mapped files it also measures whether the coroutines of a thread are faster if one runs while the memory that another
/// one READs comes into the processor's cache; sessions opened afterwards do what was faster. Measure again when the pool
/// has grown much.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    place: Place,
    /// Threads that post READs [default: one for each core]
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// How long each of the three measurements takes
    #[arg(long, value_name = "TIME", default_value = "500ms", value_parser = parse_duration)]
    time: Duration,
    /// Measure, and do not keep the figures
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    json: Json,
}

/// READs of the shortest length there is, and of one long enough that only bytes count.
const SHORT: usize = 8;
const LONG: usize = 64 << 10;
/// READs of one batch: short ones as many as a NIC keeps outstanding for a connection.
const SHORT_BATCH: usize = 16;
const LONG_BATCH: usize = 4;

/// Interleaving has to save so much: an operation of an index takes longer to suspend than a bare READ.
const WORTH: f64 = 0.85;
/// Coroutines, bytes of a READ and READs with which interleaving is measured: a bucket, as indexes READ it.
const COROUTINES: u64 = 16;
const BUCKET: usize = 512;
const ROUNDS: u64 = 2000;

/// READs buckets at random places among the first `used` bytes of the first node, with interleaving or without; returns the
/// nanoseconds of a READ.
fn scattered(session: &Session, used: u64, interleaving: bool) -> Result<f64, Failure> {
    let endpoint = session.raw().endpoint();
    endpoint.set_interleaving(interleaving);
    let began = Instant::now();
    let tasks: Vec<_> = (0..COROUTINES)
        .map(|seed| {
            let session = Rc::clone(session.raw());
            let mut random = SplitMix64::seed_from_u64(seed);
            async move {
                for _ in 0..ROUNDS {
                    let at = random.next_u64() % (used / BUCKET as u64).max(1) * BUCKET as u64;
                    let span = session.span(OpKind::Other);
                    span.read(RemotePtr::new(farindex_pool::layout::HOME, at), BUCKET).await?;
                }
                Ok(())
            }
        })
        .map(|task| session.spawn(task))
        .collect();
    let done: Result<(), FabricError> = session.block_on(async {
        for task in tasks {
            task.await?;
        }
        Ok(())
    });
    done.map_err(failed)?;
    Ok(began.elapsed().as_nanos() as f64 / (COROUTINES * ROUNDS) as f64)
}

/// READs of buckets at random places, at once and interleaved: nanoseconds of each, the best of several rounds in
/// turns. `None` where coroutines cannot interleave.
fn compare_interleaving(session: &Session) -> Result<Option<[f64; 2]>, Failure> {
    if !session.raw().endpoint().can_interleave() {
        return Ok(None);
    }
    let usage = session.usage()?;
    let used = usage.first().map_or(0, |node| node.data_bytes - node.free_chunk_bytes);
    // No more than the region, whatever its header says.
    let region = session.pool().raw().superblock(farindex_pool::layout::HOME).region_len;
    let used = used.clamp(BUCKET as u64, region.max(BUCKET as u64));
    let mut best = [f64::INFINITY; 2];
    for _ in 0..5 {
        for (interleaving, best) in [false, true].into_iter().zip(&mut best) {
            *best = best.min(scattered(session, used, interleaving)?);
        }
    }
    session.raw().endpoint().set_interleaving(false);
    Ok(Some(best))
}

fn failed(error: FabricError) -> Failure {
    farindex::Error::from(error).into()
}

/// Posts batches of READs until the time is over; returns the READs, and the nanoseconds of the median batch.
async fn read_for(session: &Session, len: usize, batch: usize, time: Duration) -> Result<(u64, f64), FabricError> {
    let span = session.raw().span(OpKind::Other);
    let node = farindex_pool::layout::HOME;
    let (began, mut reads, mut each) = (Instant::now(), 0, Vec::new());
    while began.elapsed() < time {
        let mut all = span.batch();
        for _ in 0..batch {
            all.read(RemotePtr::new(node, 0), len);
        }
        let one = Instant::now();
        all.post().await?;
        each.push(one.elapsed().as_nanos() as u64);
        reads += batch as u64;
    }
    each.sort_unstable();
    Ok((reads, each.get(each.len() / 2).copied().unwrap_or_default() as f64))
}

/// READs of all threads together for each second.
fn rate(pool: &Pool, threads: usize, len: usize, batch: usize, time: Duration) -> Result<f64, Failure> {
    let barrier = Barrier::new(threads);
    let work = || {
        let session = pool.session();
        // A thread that gets no session must not keep the others waiting.
        barrier.wait();
        let session = session?;
        let began = Instant::now();
        let (reads, _) = session.block_on(read_for(&session, len, batch, time)).map_err(failed)?;
        Ok::<f64, Failure>(reads as f64 / began.elapsed().as_secs_f64())
    };
    let rates = std::thread::scope(|scope| {
        let all: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, _>| {
            thread.join().unwrap_or_else(|_| Err(Failure::new(exit::BUG, "a measuring thread panicked")))
        };
        all.into_iter().map(join).collect::<Result<Vec<f64>, Failure>>()
    })?;
    Ok(rates.iter().sum())
}

pub(crate) fn run(args: &Args) -> Result<u8, Failure> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = args.threads.unwrap_or(cores);
    if threads == 0 || threads > 1024 || args.time.is_zero() {
        return Err(Failure::usage("it takes 1 to 1024 threads, and some time"));
    }
    let pool = args.place.open()?;
    let session = pool.session()?;
    let long = LONG.min(pool.raw().superblock(farindex_pool::layout::HOME).region_len as usize / 8 * 8);
    let (_, read_ns) = session.block_on(read_for(&session, SHORT, 1, args.time)).map_err(failed)?;
    let reads_per_s = rate(&pool, threads, SHORT, SHORT_BATCH, args.time)?;
    let bytes_per_s = rate(&pool, threads, long, LONG_BATCH, args.time)? * long as f64;
    let buckets = compare_interleaving(&session)?;
    let interleaving = buckets.is_some_and(|[at_once, interleaved]| interleaved < at_once * WORTH);
    let measured = Calibration { read_ns: read_ns.max(1.0), reads_per_s, bytes_per_s, interleaving };
    if !measured.is_sound() {
        return Err(Failure::new(exit::BUG, format!("these figures make no sense: {measured:?}")));
    }
    if !args.dry_run {
        let raw = session.raw();
        let span = raw.span(OpKind::Other);
        session.block_on(measured.store(raw, &span)).map_err(farindex::Error::from)?;
    }
    report(args, threads, &measured, buckets)?;
    Ok(exit::OK)
}

fn report(args: &Args, threads: usize, measured: &Calibration, buckets: Option<[f64; 2]>) -> Result<(), Failure> {
    let Calibration { read_ns, reads_per_s, bytes_per_s, interleaving } = *measured;
    let network = Network::measured(read_ns, reads_per_s, bytes_per_s).unwrap_or(Network::CONNECTX5_EDR);
    let reads = |width| {
        [0.25, 0.5, 0.65, 0.8]
            .map(|load| Probes::of_misses(load).map_or(1, |probes| best_read(&probes, &network, width).slots))
    };
    let result = json!({
        "threads": threads, "stored": !args.dry_run,
        "read_ns": read_ns, "reads_per_s": reads_per_s, "bytes_per_s": bytes_per_s,
        "bucket_ns": buckets.map(|[ns, _]| ns), "interleaved_bucket_ns": buckets.map(|[_, ns]| ns),
        "interleaving": interleaving,
        "slots_at_load_25_50_65_80": { "width_8": reads(8), "width_32": reads(32) },
    });
    args.json.give(&result, || {
        let mut text = format!(
            "one READ         {read_ns:.0} ns\nREADs            {:.2} M/s with {threads} threads\nbytes            {:.2} GB/s\n",
            reads_per_s / 1e6,
            bytes_per_s / 1e9
        );
        if let Some([at_once, interleaved]) = buckets {
            let so = if interleaving { "pays" } else { "does not pay" };
            let _ = writeln!(
                text,
                "512 bytes        {at_once:.0} ns at random places, {interleaved:.0} ns with coroutines interleaved, which {so}"
            );
        }
        for width in [8, 32] {
            // Writing to a string does not fail.
            let _ = writeln!(text, "slots of a READ  {:?} of {width} bytes at loads 0.25, 0.5, 0.65, 0.8", reads(width));
        }
        text + if args.dry_run { "not stored\n" } else { "stored with the pool\n" }
    })
}
