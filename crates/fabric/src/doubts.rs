//! Batches that have failed and may land yet (N7).
//!
//! Invariants: a doubt is about the nodes that one or more failed batches change. What it holds is dropped when nothing of
//! those batches can land any more, because the client has a later connection to each of these nodes; otherwise never. The
//! transport has given such a batch up: it does not send it over a later connection. So a batch that has failed by the
//! endpoint's deadline alone is none of these.

use crate::{Chain, NodeId};
use std::any::Any;
use std::rc::Rc;

/// A set of nodes: a bit for each of the first 63, and one for all others.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Nodes(u64);

const OTHERS: usize = 63;

impl Nodes {
    /// The nodes that a chain changes.
    #[inline]
    pub(crate) fn changed_by(chain: &Chain) -> Self {
        let changed = chain.iter().filter(|verb| verb.kind.changes());
        Nodes(changed.fold(0, |nodes, verb| nodes | 1 << verb.node().index().min(OTHERS)))
    }
    pub(crate) fn is_empty(self) -> bool {
        self.0 == 0
    }
    fn has_others(self) -> bool {
        self.0 >> OTHERS != 0
    }
    fn iter(self) -> impl Iterator<Item = NodeId> {
        (0..OTHERS).filter(move |node| self.0 >> node & 1 == 1).map(|node| NodeId::new(node as u16))
    }
}

struct Doubt {
    nodes: Nodes,
    /// The numbers of the connections to each of them when the batch had failed. `None`: nobody has looked yet.
    over: Option<Vec<u64>>,
    held: Vec<Rc<dyn Any>>,
    boxed: Vec<Box<dyn Any>>,
}

/// What doubts that have ended have held. Dropping it may run foreign code.
pub(crate) type Ended = Vec<(Vec<Rc<dyn Any>>, Vec<Box<dyn Any>>)>;

/// The doubts of one endpoint.
#[derive(Default)]
pub(crate) struct Doubts {
    all: Vec<Doubt>,
    /// Batches so far that change memory and have failed.
    failed: u64,
}

impl Doubts {
    /// A batch that changes these nodes has failed. What it has held is held on.
    pub(crate) fn add(&mut self, nodes: Nodes, held: Vec<Rc<dyn Any>>, boxed: Option<Box<dyn Any>>) {
        self.failed += 1;
        self.insert(Doubt { nodes, over: None, held, boxed: boxed.into_iter().collect() });
    }
    /// Merges it with one that ends together with it, so that a node that is gone for long adds none for each batch.
    fn insert(&mut self, doubt: Doubt) {
        match self.all.iter_mut().find(|other| (other.nodes, &other.over) == (doubt.nodes, &doubt.over)) {
            Some(other) => {
                doubt.held.iter().for_each(|held| hold_once(&mut other.held, held));
                other.boxed.extend(doubt.boxed);
            }
            None => self.all.push(doubt),
        }
    }
    /// Number of batches so far that change memory and have failed.
    #[inline]
    pub(crate) fn failed(&self) -> u64 {
        self.failed
    }
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }
    /// Holds a value until all doubts have ended.
    pub(crate) fn hold(&mut self, held: &Rc<dyn Any>) {
        self.all.iter_mut().for_each(|doubt| hold_once(&mut doubt.held, held));
    }
    /// Holds a value until a doubt has ended that is there; returns it if there is none.
    pub(crate) fn hold_boxed(&mut self, held: Box<dyn Any>) -> Option<Box<dyn Any>> {
        match self.all.last_mut() {
            Some(doubt) => doubt.boxed.push(held),
            None => return Some(held),
        }
        None
    }

    /// Ends the doubts about batches that cannot land any more; returns what they have held, for the caller to drop.
    /// `connections`: the number of the latest connection to a node, 0 where connections have no numbers.
    pub(crate) fn end(&mut self, connections: impl Fn(NodeId) -> u64) -> Ended {
        let mut ended = Ended::new();
        for mut doubt in std::mem::take(&mut self.all) {
            let now: Vec<u64> = doubt.nodes.iter().map(&connections).collect();
            match &doubt.over {
                None => doubt.over = Some(now),
                Some(over) if !doubt.nodes.has_others() && over.iter().zip(&now).all(|(over, now)| now > over) => {
                    ended.push((doubt.held, doubt.boxed));
                    continue;
                }
                Some(_) => {}
            }
            self.insert(doubt);
        }
        ended
    }
}

/// Adds a value to those that are held, unless it is one of them.
pub(crate) fn hold_once(all: &mut Vec<Rc<dyn Any>>, held: &Rc<dyn Any>) {
    if !all.iter().any(|other| Rc::ptr_eq(other, held)) {
        all.push(Rc::clone(held));
    }
}

impl Drop for Doubts {
    fn drop(&mut self) {
        // These verbs may land later, unnoticed.
        self.all.drain(..).for_each(std::mem::forget);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    struct Counts(Rc<Cell<u32>>);
    impl Drop for Counts {
        fn drop(&mut self) {
            self.0.set(self.0.get() + 1);
        }
    }

    fn nodes(which: &[u16]) -> Nodes {
        Nodes(which.iter().fold(0, |nodes, node| nodes | 1 << (*node as usize).min(OTHERS)))
    }

    #[test]
    fn doubt_ends_with_a_later_connection_to_each_of_its_nodes() {
        let (dropped, mut doubts) = (Rc::new(Cell::new(0)), Doubts::default());
        doubts.add(nodes(&[0, 2]), Vec::new(), Some(Box::new(Counts(Rc::clone(&dropped)))));
        let held: Rc<dyn Any> = Rc::new(Counts(Rc::clone(&dropped)));
        doubts.hold(&held);
        drop(held);
        let connected = |at: [u64; 3]| move |node: NodeId| at[node.index()];
        for at in [[4, 1, 7], [4, 1, 7], [5, 2, 7], [4, 9, 8]] {
            drop(doubts.end(connected(at)));
            assert!(!doubts.is_empty() && dropped.get() == 0, "{at:?}");
        }
        drop(doubts.end(connected([5, 1, 8])));
        assert!(doubts.is_empty() && dropped.get() == 2 && doubts.failed() == 1);
    }

    #[test]
    fn doubt_stays_where_connections_have_no_numbers() {
        let (dropped, mut doubts) = (Rc::new(Cell::new(0)), Doubts::default());
        doubts.add(nodes(&[1]), Vec::new(), Some(Box::new(Counts(Rc::clone(&dropped)))));
        drop(doubts.end(|_| 0));
        drop(doubts.end(|_| 0));
        // Those are not told apart.
        doubts.add(nodes(&[64]), Vec::new(), None);
        drop(doubts.end(|_| 1));
        drop(doubts.end(|_| 2));
        assert_eq!((doubts.all.len(), doubts.failed(), dropped.get()), (1, 2, 1));
        doubts.add(nodes(&[1]), Vec::new(), Some(Box::new(Counts(Rc::clone(&dropped)))));
        drop(doubts);
        assert_eq!(dropped.get(), 1, "it was dropped");
    }

    #[test]
    fn many_failures_of_one_node_are_one_doubt() {
        let mut doubts = Doubts::default();
        let held: Rc<dyn Any> = Rc::new(0);
        for _ in 0..100 {
            doubts.add(nodes(&[0]), vec![Rc::clone(&held)], None);
            drop(doubts.end(|_| 3));
        }
        assert_eq!((doubts.all.len(), doubts.all[0].held.len()), (1, 1));
    }
}
