//! Compares the model of read sizes with tables that were filled by linear probing: `E[X(R)]` agrees within 1 %, and
//! `R*` costs at most 1 % more than the best `R`.

use farindex_index::linear::read_size::{Network, Probes, Read, best_read, best_read_unconstrained};
use farindex_testkit::probed::{Table, requests};

/// Returns the lowest cost over all read sizes, by brute force.
fn best(counts: &[u64], network: &Network, width: u64, most: u64) -> f64 {
    let costs = (1..=most).map(|read| requests(counts, read) * network.read_cost(read, width));
    costs.fold(f64::INFINITY, f64::min)
}

#[test]
fn model_is_within_one_percent_of_simulated_tables() {
    let network = Network::CONNECTX5_EDR;
    let (mut combinations, mut worst_requests, mut worst_choice) = (0, 0.0f64, 1.0f64);
    // Long clusters are rare, and a fuller table has to be larger for as many of them.
    for (load, bits) in [(0.1, 20), (0.25, 20), (0.5, 20), (0.65, 20), (0.8, 22), (0.85, 23), (0.9, 24), (0.92, 25)] {
        let table = Table::fill(bits, load, 0x5EED ^ bits);
        let sides = [
            ("absent keys", &table.misses, Probes::of_misses(load)),
            ("present keys", &table.hits, Probes::of_hits(load)),
            ("present keys, all matches", &table.all_matches, Probes::of_all_matches(load)),
        ];
        for (lookups, counts, probes) in sides {
            let probes = probes.expect("a load");
            for width in [5, 8, 16, 32, 128] {
                let most = network.largest_read(width);
                let free = best_read_unconstrained(&probes, &network, width).slots;
                for read in [1, 2, 256 / width, most, free] {
                    let (model, table) = (probes.requests(read), requests(counts, read));
                    let off = (model / table - 1.0).abs();
                    assert!(off < 0.01, "{lookups}, load {load}, R {read}: model {model}, table {table}");
                    worst_requests = worst_requests.max(off);
                    combinations += 1;
                }
                for (chosen, most) in [
                    (best_read(&probes, &network, width), most),
                    (best_read_unconstrained(&probes, &network, width), 3 * free + 50),
                ] {
                    let Read { slots, .. } = chosen;
                    let cost = requests(counts, slots) * network.read_cost(slots, width);
                    let off = cost / best(counts, &network, width, most);
                    assert!(off < 1.01, "{lookups}, load {load}, width {width}: R* {slots} costs {off} of the best");
                    worst_choice = worst_choice.max(off);
                }
            }
        }
    }
    println!(
        "{combinations} combinations; E[X(R)] off by at most {:.3} %, R* above the best by at most {:.3} %",
        worst_requests * 100.0,
        (worst_choice - 1.0) * 100.0
    );
    assert!(combinations >= 40);
}

/// The exact minimum and the size that Table 1 prints differ: simulated tables show that the exact minimum is cheaper.
#[test]
fn exact_minimum_is_cheaper_than_the_size_that_table_1_prints() {
    let network = Network::CONNECTX5_EDR;
    println!("load  lookups                    R exact  R printed  cost of exact / printed");
    for (load, printed) in [(0.25, 5), (0.5, 13), (0.65, 29)] {
        let table = Table::fill(22, load, 77);
        let exact = best_read_unconstrained(&Probes::of_misses(load).expect("a load"), &network, 8).slots;
        for (lookups, counts) in [("absent keys", &table.misses), ("present keys, all matches", &table.all_matches)] {
            let cost = |read| requests(counts, read) * network.read_cost(read, 8);
            println!("{load:<5} {lookups:<26} {exact:>7}  {printed:>9}  {:.5}", cost(exact) / cost(printed));
            assert!(cost(exact) < cost(printed), "{lookups}, load {load}");
        }
    }
}

/// All seven sizes that Table 1 prints are the minimum of a cost whose sum over `i` (formula 4) ends as soon as 99 % of
/// the lookups have ended. This explains why they differ from the exact minimum.
#[test]
fn sizes_of_table_1_come_from_a_sum_that_ends_at_99_percent() {
    let network = Network::CONNECTX5_EDR;
    for (load, printed) in [(0.25, 5), (0.5, 13), (0.65, 29), (0.8, 96), (0.85, 174), (0.9, 201), (0.95, 547)] {
        let probes = Probes::of_misses(load).expect("a load");
        let cost = |read: u64| {
            let (mut sum, mut before) = (0.0, 0.0);
            for i in 1u32.. {
                let now = probes.within(u64::from(i) * read);
                sum += f64::from(i) * (now - before);
                before = now;
                if now >= 0.99 {
                    break;
                }
            }
            sum * network.read_cost(read, 8)
        };
        let cheapest = (1..3000).min_by(|a, b| cost(*a).total_cmp(&cost(*b)));
        assert_eq!(cheapest, Some(printed), "load {load}");
    }
}

/// In Table 1, the paper's lookups return all matches of present keys.
#[test]
fn model_gives_the_requests_of_table_1_with_the_papers_read_sizes() {
    let rows: [(f64, [(u64, f64); 3]); 7] = [
        (0.25, [(32, 1.00), (5, 1.03), (5, 1.03)]),
        (0.50, [(32, 1.00), (13, 1.03), (13, 1.03)]),
        (0.65, [(32, 1.01), (29, 1.02), (23, 1.04)]),
        (0.80, [(32, 1.22), (96, 1.02), (23, 1.39)]),
        (0.85, [(32, 1.53), (174, 1.01), (23, 1.85)]),
        (0.90, [(32, 2.46), (201, 1.08), (23, 3.17)]),
        (0.95, [(32, 7.41), (547, 1.16), (23, 10.05)]),
    ];
    for (load, row) in rows {
        let probes = Probes::of_all_matches(load).expect("a load");
        for (read, printed) in row {
            let model = probes.requests(read);
            println!("load {load}: R {read:>3}: paper {printed:>5}, model {model:.3}, ratio {:.3}", model / printed);
            assert!((model / printed - 1.0).abs() < 0.01, "load {load}, R {read}");
        }
    }
}
