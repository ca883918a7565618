//! Batches in flight.
//!
//! Invariants: a batch is handed back once, when nothing of it is in flight any more: its buffers are the device's
//! until then; of several errors the first is reported.

use farindex_fabric::{Chain, FabricError};

/// One batch.
pub(crate) struct Flight {
    /// What the endpoint calls it.
    pub(crate) id: u64,
    pub(crate) chain: Chain,
    /// Memory nodes that have not answered yet.
    parts: usize,
    result: Result<(), FabricError>,
}

/// All of one transport, by their places.
#[derive(Default)]
pub(crate) struct Inflight {
    places: Vec<Option<Flight>>,
    free: Vec<usize>,
    /// Those that are to be handed back.
    ended: Vec<usize>,
}

impl Inflight {
    /// A batch that waits for `parts` answers.
    pub(crate) fn begin(&mut self, id: u64, chain: Chain, parts: usize) -> usize {
        let flight = Some(Flight { id, chain, parts, result: Ok(()) });
        match self.free.pop() {
            Some(place) => {
                if let Some(slot) = self.places.get_mut(place) {
                    *slot = flight;
                }
                place
            }
            None => {
                self.places.push(flight);
                self.places.len() - 1
            }
        }
    }
    pub(crate) fn chain(&mut self, place: usize) -> Option<&mut Chain> {
        self.places.get_mut(place)?.as_mut().map(|flight| &mut flight.chain)
    }
    /// Records one of its answers.
    pub(crate) fn part_ended(&mut self, place: usize, result: Result<(), FabricError>) {
        let Some(flight) = self.places.get_mut(place).and_then(Option::as_mut) else { return };
        if flight.result.is_ok() {
            flight.result = result;
        }
        flight.parts = flight.parts.saturating_sub(1);
        if flight.parts == 0 {
            self.ended.push(place);
        }
    }
    /// The next one to hand back.
    pub(crate) fn take_ended(&mut self) -> Option<(u64, Chain, Result<(), FabricError>)> {
        let place = self.ended.pop()?;
        let flight = self.places.get_mut(place)?.take()?;
        self.free.push(place);
        Some((flight.id, flight.chain, flight.result))
    }
    /// Takes back one that has ended while it was posted.
    pub(crate) fn take_if_ended(&mut self, place: usize) -> Option<(Chain, Result<(), FabricError>)> {
        let at = self.ended.iter().position(|ended| *ended == place)?;
        self.ended.swap_remove(at);
        let flight = self.places.get_mut(place)?.take()?;
        self.free.push(place);
        Some((flight.chain, flight.result))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farindex_fabric::NodeId;

    #[test]
    fn a_batch_is_handed_back_once_with_its_first_error() {
        let mut flights = Inflight::default();
        let (one, two) = (flights.begin(7, Chain::new(), 2), flights.begin(8, Chain::new(), 1));
        let lost = |node| FabricError::NoSuchNode(NodeId::new(node));
        flights.part_ended(one, Err(lost(1)));
        assert!(flights.take_ended().is_none(), "a part is still on its way");
        flights.part_ended(one, Err(lost(2)));
        assert_eq!(flights.take_ended().map(|(id, _, result)| (id, result)), Some((7, Err(lost(1)))));
        assert!(flights.take_ended().is_none());
        // Its place is used again.
        assert_eq!(flights.begin(9, Chain::new(), 1), one);
        flights.part_ended(two, Ok(()));
        assert!(flights.take_if_ended(one).is_none());
        assert_eq!(flights.take_if_ended(two).map(|(_, result)| result), Some(Ok(())));
        assert!(flights.take_ended().is_none());
    }
}
