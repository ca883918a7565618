//! Addresses in far memory that lead from one to the next, and that damage may have closed to a ring.

use farindex_fabric::RemotePtr;

/// Notices when a way leads back to an address that it has passed (Brent's method: a ring is gone through up to three times
/// before).
pub(crate) struct Way {
    passed: RemotePtr,
    steps: u64,
}

impl Way {
    /// The way from this address on.
    pub(crate) fn from(at: RemotePtr) -> Self {
        Way { passed: at, steps: 0 }
    }
    /// Goes to this address. Returns whether it is known that the way has been there before.
    pub(crate) fn leads_back_to(&mut self, at: RemotePtr) -> bool {
        self.steps += 1;
        let back = at == self.passed;
        if self.steps.is_power_of_two() {
            self.passed = at;
        }
        back
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farindex_fabric::NodeId;

    #[test]
    fn a_way_that_leads_back_ends() {
        let at = |number: u64| RemotePtr::new(NodeId::new(0), number * 64);
        for before in [0, 1, 7, 64] {
            for ring in 1..70 {
                let mut way = Way::from(at(0));
                let place = |step: u64| if step < before { step } else { before + (step - before) % ring };
                let end = (1..1000).find(|step| way.leads_back_to(at(place(*step))));
                assert!(end.is_some_and(|end| end <= 3 * (before + ring)), "{before} {ring}: {end:?}");
            }
        }
        let mut way = Way::from(at(0));
        assert!((1..10_000).all(|step| !way.leads_back_to(at(step))));
    }
}
