//! Load factors.

use super::*;

/// The mean load factor at which the first insert fails.
fn max_load(span: usize, h: usize, trials: u64) -> f64 {
    let (layout, node) = (layout(span, h), node(0x77, 0, 1));
    let mut held = 0;
    for trial in 0..trials {
        let mut rng = Rng(trial);
        let mut image = Image::empty(layout, &node, 0);
        loop {
            let hints = image.hints().expect("known");
            let key = Key::inline(rng.next().to_be_bytes());
            match insert(&mut image, node.seed(), hints, Item { key, word1: 1, block: false }, &[]) {
                Insert::Done { plan, .. } => image.set(layout::HINTS_OFFSET / 8, plan.hints.bits()),
                Insert::Full(_) => break,
                other => panic!("{other:?}"),
            }
            held += 1;
        }
    }
    held as f64 / (span as u64 * trials) as f64
}

/// CHIME, section 5.4 and Figure 19b: 37.7 % with neighbourhoods of 2, 88.1 % with 8, 99.8 % with 16, as means over the
/// leaves that a load splits. A fresh leaf takes more.
#[test]
fn load_factors_are_those_of_the_paper() {
    for (h, least, most) in [(2, 0.36, 0.39), (8, 0.93, 0.955), (16, 0.995, 1.0)] {
        let load = max_load(64, h, 200);
        assert!((least..=most).contains(&load), "neighbourhood {h}: {load}");
    }
    let loads: Vec<f64> = [16, 64, 256, 512].map(|span| max_load(span, 8, 60)).to_vec();
    assert!(loads.is_sorted_by(|a, b| a > b), "{loads:?}");
}

/// The cost of inserts into a leaf of the default shape that is 70 % to 80 % full, as the mean of: entries READ,
/// WRITEs, and bytes written.
fn insert_cost() -> [f64; 3] {
    let mut rng = Rng(1);
    let (mut sums, mut count) = ([0; 3], 0);
    for _ in 0..300 {
        let mut leaf = Leaf::new(layout(64, 8), node(0x77, 0, 1));
        while leaf.model.len() < 51 {
            let id = 2 * rng.below(1 << 20) as Id;
            let Insert::Done { plan, .. } = leaf.plan_insert(id, 0) else { break };
            if leaf.model.len() >= 45 {
                let (_, entries) = leaf.hints().insert_range(leaf.layout, leaf.layout.home(key(id)));
                sums.iter_mut().zip([entries, plan.writes.len(), plan.bytes()]).for_each(|(sum, n)| *sum += n);
                count += 1;
            }
            leaf.apply(&plan);
            leaf.model.insert(id, 0);
        }
    }
    sums.map(|sum| sum as f64 / f64::from(count))
}

#[test]
fn insert_into_a_leaf_three_quarters_full_reads_few_entries_and_takes_few_writes() {
    let [entries, writes, bytes] = insert_cost();
    assert!(entries < 10.0 && writes < 3.6 && bytes < 100.0, "{entries} entries, {writes} WRITEs, {bytes} bytes");
}
