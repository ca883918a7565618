//! READs of several sizes, one or two at a time: SHARD's Figure 1a, in the simulator's model.

use farindex_fabric::{FabricError, NodeId, OpKind, RemotePtr};
use farindex_sim::{Config, Preset, Sim, SimRng};
use serde::Serialize;
use std::time::Duration;

/// Where the paper's claim is from.
pub(crate) const FIGURE_1A: &str =
    "H. Zha et al., SHARD, PVLDB 19(4), 2025, Figure 1a and section 1 (READs of one and two round trips)";
/// What the paper says there.
pub(crate) const CLAIM_1A: &str =
    "less RTT always achieves higher throughput, even if the total data size read is greater";

/// Sizes of the figure, in bytes altogether.
pub(crate) const SIZES: [usize; 5] = [64, 128, 256, 512, 1024];
/// Clients on each compute node.
pub(crate) const THREADS: [usize; 4] = [4, 8, 16, 36];
/// The smallest READ that is compared with larger ones.
pub(crate) const SMALL: usize = 64;

/// How the bytes of one access are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
    /// One READ (`x` in the figure).
    One,
    /// Two READs behind one doorbell (`2*x-b`).
    Batch,
    /// Two READs, one after the other (`2*x`).
    InTurn,
}

/// Accesses a second, with so many clients on each compute node of the preset.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Point {
    /// Clients on each compute node.
    pub(crate) threads: usize,
    /// Bytes of one access.
    pub(crate) bytes: usize,
    /// In one READ.
    pub(crate) one: f64,
    /// In two READs of half the size, behind one doorbell.
    pub(crate) batch: f64,
    /// In two READs of half the size, one after the other.
    pub(crate) in_turn: f64,
}

/// Virtual time that is measured, after as much to warm up.
const SPAN: Duration = Duration::from_micros(300);
const NODE_LEN: u64 = 1 << 20;

/// Accesses a second of all clients: each begins its next one when the last has completed, at addresses drawn from
/// `seed`.
pub(crate) fn rate(preset: &Preset, threads: usize, shape: Shape, bytes: usize, seed: u64) -> Result<f64, FabricError> {
    let (hosts, nodes) = (preset.compute_nodes, preset.memory_nodes);
    let sim = Sim::new(seed, Config { nodes, node_len: NODE_LEN, model: Some(preset.clone()), ..Config::default() })?;
    let mut counts = Vec::new();
    for number in 0..hosts * threads {
        let client = sim.client_on(number % hosts);
        let endpoint = client.connect();
        let mut rng = SimRng::new(seed, 1 << 20 | number as u64);
        counts.push(sim.spawn(&client, async move {
            let span = endpoint.span(OpKind::Other);
            let mut done = 0u64;
            loop {
                let node = NodeId::new(rng.below(nodes as u64) as u16);
                let mut at = || RemotePtr::new(node, rng.below((NODE_LEN - 4096) / 64) * 64);
                match shape {
                    Shape::One => drop(span.read(at(), bytes).await?),
                    Shape::Batch => {
                        let mut batch = span.batch();
                        batch.read(at(), bytes / 2);
                        batch.read(at(), bytes / 2);
                        batch.post().await?;
                    }
                    Shape::InTurn => {
                        span.read(at(), bytes / 2).await?;
                        span.read(at(), bytes / 2).await?;
                    }
                }
                let now = endpoint.now();
                done += u64::from(now > SPAN && now <= SPAN * 2);
                if now > SPAN * 2 {
                    return Ok::<_, FabricError>(done);
                }
            }
        }));
    }
    // Nobody waits for anybody, so it ends; what it counted is looked at even if it did not.
    let ended = sim.run();
    debug_assert!(ended.is_done(), "{ended}");
    let mut total = 0;
    for count in counts {
        total += count.take().unwrap_or(Ok(0))?;
    }
    Ok(total as f64 / SPAN.as_secs_f64())
}

/// All points of the figure; `each` is called with every one, and may end it.
pub(crate) fn points(preset: &Preset, seed: u64, stopped: impl Fn() -> bool) -> Result<Vec<Point>, FabricError> {
    let mut points = Vec::new();
    for threads in THREADS {
        for bytes in SIZES {
            if stopped() {
                return Ok(points);
            }
            let of = |shape| rate(preset, threads, shape, bytes, seed);
            let (one, batch, in_turn) = (of(Shape::One)?, of(Shape::Batch)?, of(Shape::InTurn)?);
            points.push(Point { threads, bytes, one, batch, in_turn });
        }
    }
    Ok(points)
}

/// Does one READ beat two of half the size, one after the other, everywhere?
pub(crate) fn beats_in_turn(points: &[Point]) -> bool {
    points.iter().all(|point| point.one > point.in_turn)
}

/// One READ's throughput over that of two of half the size behind one doorbell: the least and the largest.
pub(crate) fn against_batch(points: &[Point]) -> (f64, f64) {
    let ratios = points.iter().map(|point| point.one / point.batch);
    ratios.fold((f64::INFINITY, 0.0), |(least, most), ratio| (least.min(ratio), most.max(ratio)))
}

/// In the model a message is passed on when all of it is there. Two halves travel one behind the other, so that on an
/// idle network they can be ahead of the whole by as much as this; a NIC cuts messages into packets.
pub(crate) const GRAIN: f64 = 0.02;

/// The largest READ that still beats two of [`SMALL`] bytes, with so many clients on each compute node: behind one
/// doorbell, and in turn. `None` where none does.
pub(crate) fn largest_that_beats_small(points: &[Point], threads: usize) -> [Option<usize>; 2] {
    let of = |bytes| points.iter().find(|point| point.threads == threads && point.bytes == bytes);
    let small = of(2 * SMALL);
    [|point: &Point| point.batch, |point: &Point| point.in_turn].map(|two| {
        let bound = two(small?);
        SIZES.into_iter().filter(|bytes| of(*bytes).is_some_and(|point| point.one > bound)).max()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fewer_round_trips_beat_more_and_a_smaller_cluster_does_less() {
        let preset = Preset::shard();
        let of = |threads, shape, bytes| rate(&preset, threads, shape, bytes, 7).unwrap();
        assert!(of(36, Shape::One, 256) > of(36, Shape::Batch, 256));
        assert!(of(4, Shape::Batch, 256) > of(4, Shape::InTurn, 256));
        assert!(of(4, Shape::One, 256) < of(16, Shape::One, 256) / 3.0);
        // Four clients on each of three machines, each with one READ on its way all the time.
        let alone = 12.0 / (preset.read_ns as f64 / 1e9);
        let measured = of(4, Shape::One, 64);
        assert!((measured / alone - 1.0).abs() < 0.1, "{measured} of {alone}");
    }

    #[test]
    fn the_largest_that_beats_two_small_ones() {
        let point = |bytes, one, batch, in_turn| Point { threads: 4, bytes, one, batch, in_turn };
        let points = [point(128, 9.0, 8.0, 5.0), point(256, 7.5, 6.0, 4.0), point(512, 6.0, 5.0, 3.0)];
        assert!(beats_in_turn(&points) && !beats_in_turn(&[point(64, 5.0, 4.0, 5.0)]));
        assert_eq!(against_batch(&points), (9.0 / 8.0, 7.5 / 6.0));
        assert_eq!(largest_that_beats_small(&points, 4), [Some(128), Some(512)]);
        assert_eq!(largest_that_beats_small(&points, 5), [None, None]);
    }
}
