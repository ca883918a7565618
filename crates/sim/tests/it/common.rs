//! Helpers of the simulator's tests.

use farindex_fabric::{NodeId, RemotePtr};
use farindex_sim::{Config, ODDS, Sim, Swarm};
use std::cell::RefCell;
use std::rc::Rc;

/// Address of word `index` of node 0, which is never the null pointer.
pub(crate) fn word(index: u64) -> RemotePtr {
    on(0, index)
}

/// Address of word `index` of a node.
pub(crate) fn on(node: u16, index: u64) -> RemotePtr {
    RemotePtr::new(NodeId::new(node), 64 + index * 8)
}

/// Every kind of trouble at once, but delays of about a millisecond at most, so that the runs stay short.
pub(crate) fn fierce() -> Swarm {
    Swarm { late: ODDS / 8, late_exponent: 20, ..Swarm::fierce() }
}

pub(crate) fn config() -> Config {
    Config { nodes: 2, node_len: 4096, swarm: Some(fierce()), ..Config::default() }
}

pub(crate) fn sim(seed: u64) -> Sim {
    Sim::new(seed, config()).expect("the settings are sound")
}

/// A value that a coroutine and the test share.
pub(crate) fn shared<T>(value: T) -> (Rc<RefCell<T>>, Rc<RefCell<T>>) {
    let value = Rc::new(RefCell::new(value));
    (Rc::clone(&value), value)
}

/// Counts the seeds in which something happens.
pub(crate) fn count(seeds: u64, happens: impl Fn(u64) -> bool) -> usize {
    (0..seeds).filter(|seed| happens(*seed)).count()
}
