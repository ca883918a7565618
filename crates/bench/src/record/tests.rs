use super::*;

fn row() -> Row {
    let latency = LatencyNs { p50: 310, p99: 900, p999: 12_000, mean: 350.5, max: 1_000_000, samples: 125 };
    let kind = KindRow {
        count: 1000,
        round_trips: 2.0,
        block_round_trips: 1.0,
        reads: 2.0,
        block_reads: 1.0,
        bytes_read: 576.0,
        batches: 2.0,
        ..KindRow::default()
    };
    Row {
        index: "shard".into(),
        fabric: "memory".into(),
        workload: "ycsb-c".into(),
        mix: "get=100".into(),
        distribution: "scrambled-zipfian".into(),
        keys: 100_000,
        loaded: 100_000,
        entries: 100_000,
        key_size: 8,
        key_order: "hashed".into(),
        value_size: "8".into(),
        scan_length: None,
        ops: 1000,
        warmup: 10,
        threads: 1,
        clients: 4,
        many: None,
        seed: 1,
        seconds: 0.5,
        throughput_ops_per_s: 2000.0,
        efficiency: Some(0.75),
        ceiling_ops_per_s: None,
        messages_per_op: Some(0.036),
        answers_per_op: Some(0.035),
        doorbells_per_op: None,
        latency_ns: latency,
        far_bytes_per_entry: Some(80.0),
        far_bytes: Some(8_000_000),
        far_bytes_before: None,
        cache_bytes: 4096,
        wrong_answers: 1,
        errors: 0,
        interrupted: false,
        operations: [("get".to_owned(), OperationRow { count: 1000, entries: None, latency_ns: latency })].into(),
        kinds: [("get".to_owned(), kind)].into(),
        wrong_answer_kinds: vec![FaultRow { kind: "missing".into(), count: 1, first: "get of key number 7".into() }],
        error_kinds: Vec::new(),
        host: Host { cpu: "a processor".into(), cores: 2, os: "linux".into() },
    }
}

const LATENCY: &str = r#"{"p50":310,"p99":900,"p999":12000,"mean":350.5,"max":1000000,"samples":125}"#;

#[test]
fn the_json_of_a_row_is_stable() {
    let want = [
        r#"{"index":"shard","fabric":"memory","workload":"ycsb-c","mix":"get=100","distribution":"scrambled-zipfian","#,
        r#""keys":100000,"loaded":100000,"entries":100000,"key_size":8,"key_order":"hashed","value_size":"8","ops":1000,"warmup":10,"#,
        r#""threads":1,"clients":4,"seed":1,"seconds":0.5,"throughput_ops_per_s":2000.0,"efficiency":0.75,"#,
        r#""ceiling_ops_per_s":null,"latency_ns":"#,
        LATENCY,
        r#","far_bytes_per_entry":80.0,"far_bytes":8000000,"far_bytes_before":null,"cache_bytes":4096,"#,
        r#""messages_per_op":0.036,"answers_per_op":0.035,"doorbells_per_op":null,"#,
        r#""wrong_answers":1,"errors":0,"interrupted":false,"operations":{"get":{"count":1000,"latency_ns":"#,
        LATENCY,
        r#"}},"kinds":{"get":{"count":1000,"round_trips":2.0,"block_round_trips":1.0,"reads":2.0,"block_reads":1.0,"#,
        r#""writes":0.0,"cas":0.0,"faa":0.0,"calls":0.0,"bytes_read":576.0,"bytes_written":0.0,"batches":2.0}},"#,
        r#""wrong_answer_kinds":[{"kind":"missing","count":1,"first":"get of key number 7"}],"error_kinds":[],"#,
        r#""host":{"cpu":"a processor","cores":2,"os":"linux"}}"#,
    ]
    .concat();
    assert_eq!(serde_json::to_string(&row()).unwrap(), want);
    assert_eq!(serde_json::from_str::<Row>(&row().to_json()).unwrap(), row());
}

#[test]
fn the_table_is_aligned_and_names_what_went_wrong() {
    let want = "\
index  fabric  workload  keys   ops  threads  clients  ops/s  efficiency    p50    p99   p99.9  far/entry   cache  wrong  errors
shard  memory    ycsb-c  100k  1000        1        4   2000        0.75  310ns  900ns  12.0us       80 B  4096 B      1       0

mean of one  count  round trips  of blocks  READ  WRITE   CAS   FAA  bytes read  bytes written
get           1000         2.00       1.00  2.00   0.00  0.00  0.00         576              0
WRONG ANSWER of shard: 1 x missing, first: get of key number 7
shard ycsb-c: for one operation 0.036 messages to memory nodes, 0.035 answers of them
";
    let got = table(&[row()]);
    assert_eq!(got, want, "\n{got}");
}
