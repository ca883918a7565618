//! What a fabric can do wrong. Each flaw breaks one clause of the contract, and the suite reports it by that clause.

use crate::conformance::Clause;

macro_rules! flaws {
    ($($(#[$doc:meta])* $clause:ident $name:ident),* $(,)?) => {
        /// What a fabric can do wrong.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Flaw { $($(#[$doc])* $name),* }

        impl Flaw {
            /// Each of them, with the clause that it breaks.
            pub const ALL: &[(Flaw, Clause)] = &[$((Flaw::$name, Clause::$clause)),*];
        }
    };
}

flaws! {
    /// Now and then a completion never comes.
    G1 LosesCompletions,
    /// Now and then a batch completes a second time.
    G1 CompletesTwice,
    /// Now and then a verb takes effect twice, as a retransmission might.
    G1 AppliesTwice,
    /// What goes to a memory node that does not answer is reported as done.
    G1 TakesSilenceForSuccess,
    /// Verbs ahead of a bad one take effect.
    G1 ChecksOneByOne,
    /// A bad verb is skipped and reported as done.
    G1 SwallowsErrors,
    /// Now and then the last of several batches that are sent together is lost.
    G1 LosesOneOfAMessage,
    /// A batch is sent when another one comes, or never.
    G1 KeepsALoneBatch,
    /// A batch that is refused takes those along that were collected before it.
    G1 RefusesWholeMessages,
    /// Two of the batches that are sent together get each other's results, where these have the same form.
    G1 SwapsAnswers,
    /// A WRITE stores each word in two halves.
    G2 WritesHalves,
    /// A READ fetches each word in two halves.
    G2 ReadsHalves,
    /// A CAS is a load and then a store.
    G3 SplitsCas,
    /// A FAA is a load and then a store.
    G3 SplitsFaa,
    /// CAS and FAA store their result in two halves.
    G3 AtomicsStoreHalves,
    /// A CAS that fails writes back what it saw, after others had their turn.
    G3 FailedCasWritesBack,
    /// A masked CAS writes the whole word.
    G3 MaskedCasWritesAll,
    /// A batch runs backwards.
    G4 Backwards,
    /// WRITEs of a batch overtake each other.
    G4 WritesOvertakeWrites,
    /// READs of a batch overtake its WRITEs.
    G4 ReadsOvertakeWrites,
    /// Atomics of a batch overtake its WRITEs.
    G4 AtomicsOvertakeWrites,
    /// Masked CASes of a batch overtake its WRITEs.
    G4 MaskedCasOvertakesWrites,
    /// READs and atomics of a batch overtake each other.
    G4 ReadsOvertakeAtomics,
    /// Fences are ignored.
    G4 IgnoresFences,
    /// The verbs of the last of several batches that are sent together run in any order.
    G4 LosesOrderInAMessage,
    /// A WRITE completes before it lands.
    G5 WritesBehind,
    /// READs are served from what this client has read before, now and then.
    G5 ReadsStale,
    /// A revoked client's verbs in flight go on.
    G6 RevokesWhatComesNext,
    /// What a revoked client had collected is carried out all the same.
    G6 RevokesAllButTheCollected,
    /// A revoked client's calls in flight go on.
    G6 RevokesNoCalls,
    /// A revoked client may connect anew.
    G6 RevokesConnectionsOnly,
    /// Revoking does nothing.
    G6 RevokeDoesNothing,
    /// Revoking revokes all clients but the one that asks.
    G6 RevokesAllOthers,
    /// Calls see the region of the first memory node.
    Verbs CallsReachTheFirstNode,
    /// A call that its handler refuses is answered with nothing.
    Verbs CallsSwallowRefusals,
}
