//! Linear probing with a variable read size (ADMS 2020), and cuckoo hashing, which the paper compares it with.

mod cuckoo;
mod figures;
mod probing;
mod tables;

use crate::report::{Error, Report, Watch};
use clap::ValueEnum;
use farindex::{Pool, Session};
use farindex_bench::size::parse_count;
use farindex_fabric::{OpKind, RemotePtr};
use farindex_index::keyhash::KeyHash;
use farindex_index::slotted::geometry::signature;
use serde_json::json;
use std::fmt::Write;
use tables::{
    Line, OUT_OF_BAND, Policy, REQUESTS, TABLE_1, TABLE_3, TABLE_4, heap_reads, least_slots, our_read, paper_slots,
    read_sizes, table_1, table_3,
};

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Table {
    /// Requests for each lookup and slots of a READ, by load
    #[value(name = "1")]
    Requests,
    /// What it costs to assume another load than there is
    #[value(name = "2")]
    Assumed,
    /// Slots of a READ, by record size
    #[value(name = "3")]
    Reads,
    /// READs of the table and of the heap for records out of band
    #[value(name = "4")]
    OutOfBand,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Figure {
    /// Cuckoo tables: throughput by load, and what it takes to fill them
    #[value(name = "6")]
    Cuckoo,
    /// Throughput by load
    #[value(name = "7")]
    Throughput,
    /// Latency by load
    #[value(name = "9")]
    Latency,
    /// Records of several sizes in the slots, and out of band
    #[value(name = "11")]
    Storage,
    /// Matching records of skewed keys, with clusters tracked and without
    #[value(name = "12")]
    Clusters,
    /// Slots of a READ next to a cluster
    #[value(name = "13")]
    NearCluster,
}

/// What is wanted of it.
#[derive(Debug, clap::Args)]
#[group(skip)]
#[command(group = clap::ArgGroup::new("which").required(true).multiple(false).args(["table", "figure"]))]
pub struct Args {
    /// Which table
    #[arg(long, value_enum)]
    table: Option<Table>,
    /// Which figure
    #[arg(long, value_enum)]
    figure: Option<Figure>,
    /// Slots of the tables on the simulated cluster (an eighth of that for figures 11 and 12)
    #[arg(long, value_name = "N", default_value = "1M", value_parser = parse_count)]
    pub(super) sim_slots: u64,
    /// Slots of the tables that are counted on
    #[arg(long, value_name = "N", default_value = "4M", value_parser = parse_count)]
    slots: u64,
    /// Lookups for each number
    #[arg(long, value_name = "N", default_value = "100K", value_parser = parse_count)]
    lookups: u64,
    /// Tables that each number is the mean of, at loads of 85 % and more, where there are few long clusters
    #[arg(long, value_name = "N", default_value_t = 8)]
    tables: u64,
}

/// Measures a table or figure.
pub(crate) fn run(args: &Args, watch: Watch<'_>) -> Result<Report, Error> {
    if args.slots < 1024 || args.sim_slots < 1024 || args.lookups == 0 || args.tables == 0 {
        return Err(Error::Usage("it takes 1024 slots, one lookup and one table at least".to_owned()));
    }
    match (args.table, args.figure) {
        (Some(Table::Requests), _) => requests(args),
        (Some(Table::Assumed), _) => figures::assumed_loads(args, watch),
        (None, Some(Figure::Cuckoo)) => figures::cuckoo(args, watch),
        (None, Some(Figure::Throughput)) => figures::throughput(args, watch),
        (None, Some(Figure::Latency)) => figures::latency(args, watch),
        (None, Some(Figure::Storage)) => figures::storage(args, watch),
        (None, Some(Figure::Clusters)) => figures::clusters(args, watch),
        (None, Some(Figure::NearCluster)) => figures::near_cluster(),
        (None, None) => Err(Error::Usage("it takes --table or --figure".to_owned())),
        (Some(Table::Reads), _) => {
            let result = json!({ "table": 3, "source": TABLE_3, "reads": read_sizes() });
            let text = table_3();
            Report::new(&result, text, true)
        }
        (Some(Table::OutOfBand), _) => out_of_band(args),
    }
}

/// Is a table of this load too small for its numbers to be compared with the paper's?
pub(super) fn too_small(slots: u64, load: f64) -> bool {
    slots < least_slots(load)
}

/// What a row ends with.
pub(super) fn mark(slots: u64, load: f64) -> &'static str {
    if too_small(slots, load) { "  TOO SMALL" } else { "" }
}

/// How large the tables are compared with the paper's, and what `TOO SMALL` means if a row says it. `flag` makes them
/// larger.
pub(super) fn table_sizes(slots: u64, loads: &[f64], flag: &str) -> String {
    let paper: Vec<_> = loads.iter().map(|load| format!("{} Mi at {load}", paper_slots(*load) >> 20)).collect();
    let mut text = format!("slots of a table: {slots}; the paper's, by load: {}\n", paper.join(", "));
    let least = loads.iter().filter(|load| too_small(slots, **load)).map(|load| least_slots(*load)).max();
    if let Some(least) = least {
        text += &format!(
            "TOO SMALL to be compared with the paper: a few long clusters decide the number; {flag} {least} is enough for all rows\n"
        );
    }
    text
}

/// A table of 8-byte slots in far memory as the paper has it: built beforehand, zero for empty, looked up by READs of
/// so many slots until one is empty.
struct Bare {
    session: Session,
    start: RemotePtr,
    slots: u64,
    keys: u64,
    salt: u64,
}

/// What lookups took.
#[derive(Debug, Default, Clone, Copy)]
struct Counted {
    lookups: u64,
    table: u64,
    heap: u64,
}

impl Bare {
    fn hash(&self, key: u64) -> KeyHash {
        KeyHash::unseeded(&(key ^ self.salt << 40).to_le_bytes())
    }
    fn home(&self, key: u64) -> u64 {
        ((u128::from(self.hash(key).bits().reverse_bits()) * u128::from(self.slots)) >> 64) as u64
    }
    fn signature(&self, key: u64) -> u8 {
        signature(self.hash(key))
    }

    fn build(slots: u64, load: f64, salt: u64) -> Result<Bare, Error> {
        let pool = Pool::builder().unseeded().node_bytes(slots * 8 + (64 << 20)).in_memory(1)?;
        let session = pool.session()?;
        let raw = session.raw().clone();
        let span = raw.span(OpKind::Other);
        let node = raw.pool().nodes().next().unwrap_or(farindex_fabric::NodeId::new(0));
        let start = session.block_on(raw.alloc_zeroed(&span, node, slots * 8)).map_err(farindex::Error::from)?;
        let bare = Bare { session, start, slots, keys: (slots as f64 * load) as u64, salt };
        let mut table = vec![0u64; slots as usize];
        for key in 1..=bare.keys {
            let mut at = bare.home(key) as usize;
            while table[at] != 0 {
                at = (at + 1) % table.len();
            }
            table[at] = key;
        }
        for (i, part) in table.chunks(8192).enumerate() {
            let write = span.write(start.add(i as u64 * 65536), raw.endpoint().buf_from_words(part));
            bare.session.block_on(write).map_err(|error| Error::Bug(error.to_string()))?;
        }
        Ok(bare)
    }

    /// Lookups of present keys that return all matches.
    fn look_up(&self, read: u64, lookups: u64) -> Result<Counted, Error> {
        let raw = self.session.raw();
        let span = raw.span(OpKind::Get);
        let mut counted = Counted { lookups: lookups.min(self.keys), ..Counted::default() };
        let work = async {
            for key in 1..=counted.lookups {
                let (home, signature) = (self.home(key), self.signature(key));
                let (mut walked, mut found, mut ended) = (0, false, false);
                while !ended && walked < self.slots {
                    let at = (home + walked) % self.slots;
                    let count = read.min(self.slots - at);
                    let slots = span.read(self.start.add(at * 8), count as usize * 8).await?;
                    counted.table += 1;
                    for other in slots.words() {
                        ended = *other == 0;
                        if ended {
                            break;
                        }
                        found |= *other == key;
                        counted.heap += u64::from(self.signature(*other) == signature);
                    }
                    walked += count;
                }
                if !found {
                    return Ok::<_, farindex_fabric::FabricError>(Some(key));
                }
            }
            Ok(None)
        };
        match self.session.block_on(work) {
            Ok(None) => Ok(counted),
            Ok(Some(key)) => Err(Error::Bug(format!("key {key} is missing"))),
            Err(error) => Err(Error::Bug(error.to_string())),
        }
    }
}

/// READs of the table and of the heap for each lookup, with each of these read sizes.
fn count(args: &Args, load: f64, reads: &[u64]) -> Result<Vec<(f64, f64)>, Error> {
    let tables = if load < 0.85 { 1 } else { args.tables };
    let mut sums = vec![Counted::default(); reads.len()];
    for salt in 0..tables {
        let bare = Bare::build(args.slots, load, salt + 1)?;
        for (sum, read) in sums.iter_mut().zip(reads) {
            let counted = bare.look_up(*read, args.lookups)?;
            sum.lookups += counted.lookups;
            sum.table += counted.table;
            sum.heap += counted.heap;
        }
    }
    let mean = |sum: &Counted| {
        let lookups = sum.lookups as f64;
        (sum.table as f64 / lookups, sum.heap as f64 / lookups)
    };
    Ok(sums.iter().map(mean).collect())
}

fn requests(args: &Args) -> Result<Report, Error> {
    let mut lines = Vec::new();
    for (load, row) in REQUESTS {
        let ours: Vec<u64> = row.iter().map(|(policy, ..)| our_read(load, *policy).unwrap_or(1)).collect();
        let reads: Vec<u64> = row.iter().map(|(_, read, _)| *read).chain(ours.iter().copied()).collect();
        let counted = count(args, load, &reads)?;
        let of = |read: u64| {
            let found = reads.iter().zip(&counted).find(|(of, _)| **of == read);
            found.map_or(f64::NAN, |(_, (table, _))| *table)
        };
        lines.extend(
            row.into_iter().zip(&ours).map(|(paper, ours)| Line::new(load, paper, *ours, of).of_slots(args.slots)),
        );
    }
    let result = json!({ "table": 1, "slots": args.slots, "lookups": args.lookups, "source": TABLE_1, "lines": lines });
    let text = {
        let head = format!(
            "Linear probing, Table 1: tables of {} 8-byte slots in far memory, lookups of present keys that return all matches\n\n",
            args.slots
        );
        head + &table_1(&lines) + &table_sizes(args.slots, &REQUESTS.map(|(load, _)| load), "--slots")
    };
    Report::new(&result, text, lines.iter().all(|line| line.policy == Policy::Fixed || line.holds()))
}

fn out_of_band(args: &Args) -> Result<Report, Error> {
    let counted = count(args, 0.65, &OUT_OF_BAND.map(|(_, read, ..)| read))?;
    let mut text = String::from("policy    R   table: paper, counted   heap: paper, counted (model)\n");
    let mut lines = Vec::new();
    for ((policy, read, table, heap), (counted_table, counted_heap)) in OUT_OF_BAND.into_iter().zip(counted) {
        let model = heap_reads(0.65).unwrap_or(f64::NAN);
        // Writing to a string does not fail.
        let _ = writeln!(
            text,
            "{policy:<8}  {read}         {table:.2}, {counted_table:.3}            {heap:.2}, {counted_heap:.3} ({model:.3}){}",
            mark(args.slots, 0.65)
        );
        lines.push(json!({
            "policy": policy, "read": read,
            "paper": [table, heap], "counted": [counted_table, counted_heap], "model_heap": model,
            "too_small": too_small(args.slots, 0.65),
        }));
    }
    let _ = writeln!(text, "\npaper: {TABLE_4}");
    text += &table_sizes(args.slots, &[0.65], "--slots");
    let off = |line: &serde_json::Value| {
        (0..2).any(|i| {
            let of = |name: &str| line[name][i].as_f64().unwrap_or(f64::NAN);
            (of("counted") / of("paper") - 1.0).abs() > 0.05
        })
    };
    let wrong = lines.iter().any(off);
    Report::new(&json!({ "table": 4, "source": TABLE_4, "lines": lines }), text, !(wrong))
}
