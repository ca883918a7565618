//! The raw reference of a run: the verbs that the index posted, without the index.

use farindex_bench::baseline::{Area, RawSettings, Shape, ShapeVerb, Shapes, VerbShape};
use farindex_bench::record::{KindRow, Row};
use farindex_bench::{Op, Plan};

/// SHARD's verbs where nothing is in the way: one READ of a 512-byte bucket, one of the block.
pub(crate) fn budget(plan: &Plan) -> Result<Shapes, String> {
    let block = plan.block_bytes();
    let get = format!("read 512; read {block} @block");
    let insert = format!("write {block} @block + read 512; cas");
    let update = format!("write {block} @block + read 512; read {block} @block; cas");
    let remove = format!("read 512; read {block} @block; cas");
    let absent = "read 512".to_owned();
    let gets_are_absent = plan.workload.mix.has(Op::GetAbsent) && !plan.workload.mix.has(Op::Get);
    Shapes::parse(&[
        (Op::Get, if gets_are_absent { &absent } else { &get }),
        (Op::Insert, &insert),
        (Op::Update, &update),
        (Op::Upsert, &update),
        (Op::Remove, &remove),
    ])
}

/// The verbs of one operation, from the means of a measured run, in whole numbers: what is rarer than every second
/// operation (a second bucket, a retry, growth) is not in the reference, and so counts against the index.
pub(crate) fn measured(row: &Row, plan: &Plan) -> Shapes {
    let mut shapes = Shapes::default();
    for (op, name) in [
        (Op::Get, "get"),
        (Op::Insert, "insert"),
        (Op::Update, "update"),
        (Op::Upsert, "upsert"),
        (Op::Remove, "remove"),
        (Op::Scan, "scan"),
    ] {
        if let Some(kind) = row.kinds.get(name) {
            shapes.set(op, shape(kind, plan.block_bytes()));
        }
    }
    shapes
}

fn shape(kind: &KindRow, block: u64) -> Shape {
    let whole = |mean: f64| mean.round().max(0.0) as usize;
    let words = |bytes: f64| (whole(bytes / 8.0) * 8).max(8);
    let block = block as usize;
    let block_reads = whole(kind.block_reads);
    let index_reads = whole(kind.reads - kind.block_reads);
    let index_len = match kind.reads - kind.block_reads {
        reads if reads > 0.0 => words(((kind.bytes_read - kind.block_reads * block as f64) / reads).max(8.0)),
        _ => 8,
    };
    let writes = whole(kind.writes);
    let write_len = if kind.writes > 0.0 { words(kind.bytes_written / kind.writes) } else { 8 };
    let at = |verb, area| VerbShape { verb, area };
    let read = at(ShapeVerb::Read(index_len), Area::Index);
    // The block is written along with the first READ: a batch is one wait.
    let mut first = vec![at(ShapeVerb::Write(write_len), Area::Block); writes];
    first.extend(std::iter::repeat_n(read, index_reads.min(1)));
    let mut steps = vec![first];
    // READs beyond the first wait for it, or go with it, as the number of waits says.
    let waits = whole(kind.round_trips - kind.block_round_trips);
    let atomics = whole(kind.cas) + whole(kind.faa);
    for i in 1..index_reads {
        match steps.first_mut() {
            Some(first) if i + atomics.min(1) >= waits => first.push(read),
            _ => steps.push(vec![read]),
        }
    }
    steps.extend(std::iter::repeat_n(vec![at(ShapeVerb::Read(block), Area::Block)], block_reads));
    let mut last = vec![at(ShapeVerb::Cas, Area::Index); whole(kind.cas)];
    last.extend(std::iter::repeat_n(at(ShapeVerb::Faa, Area::Index), whole(kind.faa)));
    steps.push(last);
    steps.retain(|step| !step.is_empty());
    Shape { steps }
}

/// Memory as large as the index's.
pub(crate) fn settings(shapes: Shapes, row_entries: u64, far_bytes: Option<u64>, plan: &Plan) -> RawSettings {
    let entries = row_entries.max(plan.keys);
    let block_bytes = entries * plan.block_bytes();
    // 584 bytes for a bucket of 64 slots and its share of the other levels, slots between two fifths and four fifths
    // full.
    let buckets = far_bytes.map_or(entries * 16, |far| far.saturating_sub(block_bytes));
    RawSettings { shapes, index_bytes: buckets.max(1 << 16), block_bytes: block_bytes.max(1 << 16) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shapes_of_shard_come_out_of_its_means() {
        let get = KindRow {
            count: 10,
            round_trips: 2.04,
            block_round_trips: 1.0,
            reads: 2.07,
            block_reads: 1.0,
            bytes_read: 512.0 + 64.0 + 30.0,
            ..KindRow::default()
        };
        let text = shape(&get, 64).to_string();
        assert!(text.starts_with("read 50") && text.ends_with("; read 64 @block"), "{text}");
        let update = KindRow {
            count: 10,
            round_trips: 3.0,
            block_round_trips: 1.0,
            reads: 2.0,
            block_reads: 1.0,
            writes: 1.0,
            cas: 1.0,
            bytes_read: 576.0,
            bytes_written: 64.0,
            ..KindRow::default()
        };
        assert_eq!(shape(&update, 64).to_string(), "write 64 @block + read 512; read 64 @block; cas");
        let insert = KindRow {
            round_trips: 2.3,
            block_round_trips: 0.0,
            reads: 1.2,
            block_reads: 0.0,
            bytes_read: 614.4,
            ..update
        };
        assert_eq!(shape(&insert, 64).to_string(), "write 64 @block + read 512; cas");
    }
}
