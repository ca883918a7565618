//! Which mutant is on: `MUTANT` says it, once for the process. Without it, `MUTANTS_REACHED` names a file for the
//! numbers that were passed.
#![allow(missing_docs)]
use std::io::Write;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

const UNREAD: u32 = u32::MAX;
const NONE: u32 = u32::MAX - 1;
static CHOSEN: AtomicU32 = AtomicU32::new(UNREAD);
static REACHED: [AtomicBool; 16384] = [const { AtomicBool::new(false) }; 16384];

#[cold]
fn read() -> u32 {
    let chosen = std::env::var("MUTANT").ok().and_then(|number| number.parse().ok()).unwrap_or(NONE);
    CHOSEN.store(chosen, Relaxed);
    if chosen != NONE {
        // The first panic decides; nobody has to wait for the other tests.
        std::panic::set_hook(Box::new(|panic| {
            println!("{panic}");
            std::process::exit(101)
        }));
    }
    chosen
}

#[cold]
fn reach(number: u32) {
    static PATH: OnceLock<Option<String>> = OnceLock::new();
    let new = REACHED.get(number as usize).is_some_and(|reached| !reached.swap(true, Relaxed));
    if let (true, Some(path)) = (new, PATH.get_or_init(|| std::env::var("MUTANTS_REACHED").ok())) {
        let file = std::fs::OpenOptions::new().append(true).create(true).open(path);
        let _ = file.and_then(|mut file| file.write_all(format!("{number}\n").as_bytes()));
    }
}

/// The mutants that were passed since the last call.
pub fn take_reached() -> Vec<u32> {
    (0..REACHED.len()).filter(|i| REACHED[*i].swap(false, Relaxed)).map(|i| i as u32).collect()
}

#[inline]
pub fn on(number: u32) -> bool {
    let mut chosen = CHOSEN.load(Relaxed);
    if chosen == UNREAD {
        chosen = read();
    }
    if chosen == NONE && !REACHED[number as usize].load(Relaxed) {
        reach(number);
    }
    chosen == number
}

#[inline]
pub fn not<T: std::ops::Not<Output = T>>(number: u32, value: T) -> T {
    if on(number) { value } else { !value }
}
