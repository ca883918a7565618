//! Commands by which compute nodes take ranges of keys and give them back, and lists of who owns what.
//!
//! Invariants: the judge knows no protocol. It knows when operations begin and end, and that only these change who owns what:
//! a compute node takes nothing without an operation of its own, and loses nothing unless it gives something back or another
//! one has an operation. So it knows two kinds of facts about a range, each until such an operation begins:
//!
//! * A compute node owns *nothing* of the range: at the beginning everywhere, and after its own `give_up`. That is no fact
//!   if an operation of this compute node overlapped.
//! * It owns *all* of the range: after its `own`. That is no fact if an operation of another one overlapped, or something
//!   that gives its own ranges back.
//!
//! A list of partitions is judged by the facts that were true from its beginning to its end. Any operation counts, because
//! lookups, too, now and then ask for what they READ. One that has failed or was given up may have left a proposal, which is
//! carried out later: it counts as one that never ends.

use crate::index_under_test::IndexUnderTest;
use crate::worker::{Shared, Which, Worker};
use farindex_index::IndexError;
use farindex_index::dex::PartitionInfo;
use farindex_pool::PoolError;
use farindex_sim::{ODDS, SimRng};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Bound;
use std::rc::Rc;

/// Stream of the draws of commands.
const COMMANDS: u64 = 9000;

/// From a low key up to a high key, or to the end.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Keys {
    low: Vec<u8>,
    high: Option<Vec<u8>>,
}

impl Keys {
    /// Draws a range: all keys, one, those below or above one, or those between two.
    fn draw(dice: &mut SimRng, mut key: impl FnMut(&mut SimRng) -> Vec<u8>) -> Self {
        let next = |key: &[u8]| [key, &[0]].concat();
        let (one, other) = (key(dice), key(dice));
        match dice.below(5) {
            0 => Keys { low: Vec::new(), high: None },
            1 => Keys { high: Some(next(&one)), low: one },
            2 => Keys { low: Vec::new(), high: Some(one) },
            3 => Keys { low: next(&one), high: None },
            _ => Keys { low: one.clone().min(other.clone()), high: Some(next(&one.max(other))) },
        }
    }
    fn bounds(&self) -> (Bound<&[u8]>, Bound<&[u8]>) {
        (Bound::Included(&*self.low), self.high.as_deref().map_or(Bound::Unbounded, Bound::Excluded))
    }
    fn overlaps(&self, partition: &PartitionInfo) -> bool {
        let below = |low: &[u8], high: &Option<Vec<u8>>| high.as_deref().is_none_or(|high| low < high);
        below(&self.low, &partition.high) && below(&partition.low, &self.high)
    }
}

impl fmt::Display for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} to ", self.low.escape_ascii().to_string())?;
        match &self.high {
            Some(high) => write!(f, "{:?}", high.escape_ascii().to_string()),
            None => write!(f, "the end"),
        }
    }
}

/// What a compute node owns of a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Owns {
    Nothing,
    All,
}

impl fmt::Display for Owns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if *self == Owns::All { "all" } else { "nothing" })
    }
}

/// Something that is true until an operation begins that may change it.
#[derive(Debug, Clone)]
struct Fact {
    client: u64,
    keys: Keys,
    owns: Owns,
    /// The operations that had begun.
    begun: u64,
}

/// What an operation may do to ownership.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Effect {
    /// It takes ranges for its compute node.
    Takes,
    /// It gives ranges of its compute node back.
    GivesBack,
    Both,
}

impl Effect {
    fn takes(self) -> u64 {
        u64::from(self != Effect::GivesBack)
    }
    fn gives_back(self) -> u64 {
        u64::from(self != Effect::Takes)
    }
}

/// Operations that have begun.
#[derive(Debug, Default)]
struct Count {
    begun: u64,
    /// Those that have not ended, and those that have failed or were given up.
    open: u64,
}

/// The operations of one compute node on one index, by what they may do.
#[derive(Debug, Default)]
struct Node {
    takes: Count,
    gives_back: Count,
}

/// What is known of an index.
#[derive(Debug, Default)]
struct Known {
    nodes: BTreeMap<u64, Node>,
    facts: Vec<Fact>,
}

impl Known {
    /// The operations that may make a fact of this kind untrue.
    fn against(&self, client: u64, owns: Owns) -> impl Iterator<Item = &Count> {
        self.nodes.iter().filter_map(move |(of, node)| match (owns, *of == client) {
            (Owns::Nothing, true) | (Owns::All, false) => Some(&node.takes),
            (Owns::All, true) => Some(&node.gives_back),
            (Owns::Nothing, false) => None,
        })
    }
    /// How many of these have begun.
    fn begun(&self, client: u64, owns: Owns) -> u64 {
        self.against(client, owns).map(|count| count.begun).sum()
    }
    /// The same, unless one of them is in progress, or may still take effect.
    fn undisturbed(&self, client: u64, owns: Owns) -> Option<u64> {
        let is_open = self.against(client, owns).any(|count| count.open > 0);
        (!is_open).then(|| self.begun(client, owns))
    }
    fn is_true(&self, fact: &Fact) -> bool {
        self.begun(fact.client, fact.owns) == fact.begun
    }
    fn note(&mut self, fact: Fact) {
        let facts = std::mem::take(&mut self.facts);
        self.facts = facts.into_iter().filter(|fact| self.is_true(fact)).collect();
        if self.is_true(&fact) {
            self.facts.push(fact);
        }
    }
}

/// Who may own what, of each index.
#[derive(Debug, Default)]
pub(crate) struct Commanding {
    /// Odds of a command before an operation; 0 where nothing is judged.
    odds: u32,
    known: RefCell<[Known; 2]>,
    lists: Cell<u64>,
    judged: Cell<u64>,
}

/// An operation that may change who owns what. Without [`Commanding::end`] it counts as one that never ends.
#[must_use]
pub(crate) struct Begun {
    which: Which,
    client: u64,
    effect: Effect,
}

impl Commanding {
    pub(crate) fn new(odds: u32) -> Self {
        Commanding { odds, ..Commanding::default() }
    }
    /// Lists of partitions that were judged.
    pub(crate) fn lists(&self) -> u64 {
        self.lists.get()
    }
    /// Ranges that a list had to call own.
    pub(crate) fn judged(&self) -> u64 {
        self.judged.get()
    }

    fn change(&self, which: Which, client: u64, change: impl FnOnce(&mut Node)) {
        if self.odds > 0 {
            change(self.known.borrow_mut()[which as usize].nodes.entry(client).or_default());
        }
    }
    /// Notes that an operation of a client begins.
    pub(crate) fn begin(&self, which: Which, client: u64, effect: Effect) -> Begun {
        self.change(which, client, |node| {
            for (count, does) in [(&mut node.takes, effect.takes()), (&mut node.gives_back, effect.gives_back())] {
                (count.begun, count.open) = (count.begun + does, count.open + does);
            }
        });
        Begun { which, client, effect }
    }
    /// Notes that an operation has ended, and that nothing of it can take effect any more.
    pub(crate) fn end(&self, Begun { which, client, effect }: Begun) {
        self.change(which, client, |node| {
            node.takes.open -= effect.takes();
            node.gives_back.open -= effect.gives_back();
        });
    }
    /// Notes that an operation has failed or was given up, so that something of it may still take effect.
    pub(crate) fn leave_open(&self, which: Which, client: u64) {
        let _never_ends = self.begin(which, client, Effect::Takes);
    }
    fn undisturbed(&self, which: Which, client: u64, owns: Owns) -> Option<u64> {
        self.known.borrow()[which as usize].undisturbed(client, owns)
    }

    /// The facts that a list is judged by, of those that are true now.
    fn facts(&self, which: Which, client: u64) -> Vec<Fact> {
        let known = &self.known.borrow()[which as usize];
        let mut facts: Vec<_> = known.facts.iter().filter(|fact| known.is_true(fact)).cloned().collect();
        if known.begun(client, Owns::Nothing) == 0 {
            // It has not done anything yet.
            facts.push(Fact { client, keys: Keys { low: Vec::new(), high: None }, owns: Owns::Nothing, begun: 0 });
        }
        facts
    }

    /// What is wrong with a list of a client's, by the facts that were true when it began.
    fn judge(&self, which: Which, client: u64, list: &[PartitionInfo], facts: &[Fact]) -> Vec<String> {
        let known = &self.known.borrow()[which as usize];
        let mut wrong: Vec<_> = gaps(list).into_iter().collect();
        for fact in facts.iter().filter(|fact| known.is_true(fact)) {
            let must_be_own = match (fact.owns, fact.client == client) {
                (Owns::All, is_own) => is_own,
                (Owns::Nothing, true) => false,
                (Owns::Nothing, false) => continue,
            };
            self.judged.set(self.judged.get() + u64::from(must_be_own));
            if let Some(other) = list.iter().find(|part| fact.keys.overlaps(part) && part.is_own != must_be_own) {
                let not = if must_be_own { "not " } else { "" };
                wrong.push(format!(
                    "client {client} lists the partition from {:?} on as {not}its own, and client {} owns {} of {}",
                    other.low.escape_ascii().to_string(),
                    fact.client,
                    fact.owns,
                    fact.keys
                ));
            }
        }
        wrong
    }
}

/// Does a list leave keys out, or name some twice?
fn gaps(list: &[PartitionInfo]) -> Option<String> {
    let begins = list.first().is_some_and(|first| first.low.is_empty());
    let ends = list.last().is_some_and(|last| last.high.is_none());
    let joins = |pair: &[PartitionInfo]| pair[0].high.as_ref() == Some(&pair[1].low) && pair[0].low < pair[1].low;
    let is_whole = begins && ends && list.windows(2).all(joins);
    (!is_whole).then(|| format!("a list of partitions does not name every key once: {list:?}"))
}

impl Shared {
    /// May a command fail so? There may be no memory, and others may take away what it asks for, again and again.
    pub(crate) fn refuses_command(error: &IndexError) -> bool {
        matches!(error, IndexError::Pool(PoolError::Full { .. }) | IndexError::NotOwner { .. })
    }
}

impl Worker {
    pub(crate) fn client(&self) -> u64 {
        self.name / 10
    }

    /// Gives a command, if one is drawn; `false` if the client has lost its lease.
    pub(crate) async fn command(&mut self, under_test: &dyn IndexUnderTest) -> bool {
        // A generator of its own, so that kinds without commands draw what they have always drawn.
        let mut dice = SimRng::new(self.rng.clone().word(), self.name);
        let key = self.shared.workload.next(&mut dice).1;
        let index = Rc::clone(&self.index);
        let Some(command) = under_test.command(&index, &mut dice, key) else { return true };
        let begun = self.shared.commanding.begin(self.which, self.client(), Effect::Both);
        match command.await {
            Ok(()) => self.shared.commanding.end(begun),
            Err(error) if Shared::refuses_command(&error) => {}
            Err(error) => return self.failed(error, || "a command".to_owned()),
        }
        true
    }

    /// Gives commands that are judged, if that is drawn; `false` if the client has lost its lease.
    pub(crate) async fn command_and_list(&mut self) -> bool {
        let odds = self.shared.commanding.odds;
        if odds == 0 {
            return true;
        }
        // A generator of its own, so that the operations are what they are without commands.
        let mut dice = SimRng::new(self.rng.clone().word(), COMMANDS + self.name);
        !dice.chance(odds) || self.commands(&mut dice).await
    }

    /// The last commands of a coroutine: perhaps the others are done, and nothing disturbs them.
    pub(crate) async fn command_last(&mut self) -> bool {
        if self.shared.commanding.odds == 0 || self.session.is_none() {
            return true;
        }
        let mut dice = SimRng::new(self.rng.clone().word(), COMMANDS + self.name);
        self.commands(&mut dice).await
    }

    /// Takes a range, or none; gives one back, or none; and lists the partitions after each.
    async fn commands(&mut self, dice: &mut SimRng) -> bool {
        let shared = Rc::clone(&self.shared);
        let key = |dice: &mut SimRng| shared.workload.next(dice).1;
        let taken = Keys::draw(dice, key);
        let back = if dice.chance(ODDS / 2) { taken.clone() } else { Keys::draw(dice, key) };
        let what = dice.below(4);
        (what == 0 || self.own(&taken).await)
            && self.list().await
            && (what == 1 || self.give_up(&back).await && self.list().await)
    }

    async fn own(&self, keys: &Keys) -> bool {
        let (commanding, which, client) = (&self.shared.commanding, self.which, self.client());
        let before = commanding.undisturbed(which, client, Owns::All);
        let begun = commanding.begin(which, client, Effect::Takes);
        let owned = self.index.own(keys.bounds()).await;
        self.end_command(owned, begun, (keys, Owns::All, before), "a command to own a range")
    }

    async fn give_up(&self, keys: &Keys) -> bool {
        let (commanding, which, client) = (&self.shared.commanding, self.which, self.client());
        let before = commanding.undisturbed(which, client, Owns::Nothing);
        let begun = commanding.begin(which, client, Effect::GivesBack);
        let given = self.index.give_up(keys.bounds()).await;
        self.end_command(given, begun, (keys, Owns::Nothing, before), "a command to give a range up")
    }

    /// Notes what is known after a command, if the number of operations is still the one before it.
    fn end_command(
        &self,
        ended: Result<(), IndexError>,
        begun: Begun,
        (keys, owns, before): (&Keys, Owns, Option<u64>),
        doing: &str,
    ) -> bool {
        let commanding = &self.shared.commanding;
        match ended {
            Ok(()) => {
                commanding.end(begun);
                if let Some(begun) = before {
                    let fact = Fact { client: self.client(), keys: keys.clone(), owns, begun };
                    commanding.known.borrow_mut()[self.which as usize].note(fact);
                }
                true
            }
            Err(error) if Shared::refuses_command(&error) => true,
            Err(error) => self.failed(error, || doing.to_owned()),
        }
    }

    /// Lists the partitions, and judges the list.
    async fn list(&self) -> bool {
        let commanding = &self.shared.commanding;
        let facts = commanding.facts(self.which, self.client());
        match self.index.partitions().await {
            Ok(list) => {
                commanding.lists.set(commanding.lists.get() + 1);
                for wrong in commanding.judge(self.which, self.client(), &list, &facts) {
                    self.shared.fail(wrong);
                }
                true
            }
            Err(error) if Shared::refuses_command(&error) => true,
            Err(error) => self.failed(error, || "a list of partitions".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Commanding, Effect, Fact, Keys, Owns, PartitionInfo, gaps};
    use crate::worker::Which;

    fn partition(low: &[u8], high: Option<&[u8]>, is_own: bool) -> PartitionInfo {
        PartitionInfo { low: low.to_vec(), high: high.map(<[u8]>::to_vec), owner: None, is_own }
    }
    fn all() -> Keys {
        Keys { low: Vec::new(), high: None }
    }

    /// A client that has taken all keys by command; the other operation has begun before, and has ended if `ended`.
    fn after_own(ended: bool) -> Commanding {
        let commanding = Commanding::new(1);
        let other = commanding.begin(Which::One, 2, Effect::Takes);
        if ended {
            commanding.end(other);
        }
        let before = commanding.undisturbed(Which::One, 1, Owns::All);
        let own = commanding.begin(Which::One, 1, Effect::Takes);
        commanding.end(own);
        if let Some(begun) = before {
            commanding.known.borrow_mut()[0].note(Fact { client: 1, keys: all(), owns: Owns::All, begun });
        }
        commanding
    }
    fn wrong_with(commanding: &Commanding, client: u64, is_own: bool) -> usize {
        let facts = commanding.facts(Which::One, client);
        commanding.judge(Which::One, client, &[partition(b"", None, is_own)], &facts).len()
    }

    #[test]
    fn what_a_client_has_taken_is_its_own_until_another_one_does_something() {
        let commanding = after_own(true);
        assert_eq!([true, false].map(|is_own| wrong_with(&commanding, 1, is_own)), [0, 1]);
        // Nobody else's.
        assert_eq!([true, false].map(|is_own| wrong_with(&commanding, 2, is_own)), [1, 0]);
        let facts = commanding.facts(Which::One, 1);
        let _begins = commanding.begin(Which::One, 2, Effect::Takes);
        let list = [partition(b"", None, false)];
        assert!(commanding.judge(Which::One, 1, &list, &facts).is_empty());
        assert!(commanding.facts(Which::One, 1).is_empty());
    }

    #[test]
    fn nothing_is_known_where_another_operation_has_not_ended() {
        assert_eq!(wrong_with(&after_own(false), 1, false), 0);
    }

    #[test]
    fn who_has_done_nothing_owns_nothing() {
        let commanding = Commanding::new(1);
        assert_eq!([true, false].map(|is_own| wrong_with(&commanding, 3, is_own)), [1, 0]);
        commanding.leave_open(Which::One, 3);
        assert_eq!(wrong_with(&commanding, 3, true), 0);
    }

    #[test]
    fn a_list_names_every_key_once() {
        let is_whole = |list: &[PartitionInfo]| gaps(list).is_none();
        assert!(is_whole(&[partition(b"", Some(b"b"), true), partition(b"b", None, false)]));
        assert!(!is_whole(&[]));
        assert!(!is_whole(&[partition(b"", Some(b"b"), true)]));
        assert!(!is_whole(&[partition(b"a", None, true)]));
        assert!(!is_whole(&[partition(b"", Some(b"b"), true), partition(b"c", None, false)]));
        assert!(!is_whole(&[partition(b"", Some(b"b"), true), partition(b"a", None, false)]));
    }
}
