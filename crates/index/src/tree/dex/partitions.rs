//! Moving partitions by command: a compute node that joins takes a range of keys, one that leaves gives its keys back, and
//! anybody can list who owns what.
//!
//! Invariants: D1 and D2 in `docs/protocols/dex.md`. A range is given back by a proposal of the owner to itself, so that one
//! piece of code alone, the answer to a proposal, waits for the operations in progress and forgets the copies of leaves.

use super::acquire::check_owner;
use super::command_turn::{CommandTurn, TurnWait};
use super::map::{MOST, Map};
use super::proposal::{PROPOSAL, lock_words};
use super::{Config, Dex, Offload};
use crate::IndexError;
use crate::backoff::Backoff;
use crate::marks::mark;
use crate::traits::KeyBounds;
use crate::tree::change::Puts;
use farindex_fabric::{RemotePtr, Span, cold};
use farindex_pool::Pin;
use std::ops::Bound;

/// Changes of the map that one command tries, at most. Others can take away what it has just got.
const ROUNDS: u32 = 256;

impl Config {
    /// P-Sherman of the paper: Sherman whose keys are divided among compute nodes. Leaves are changed without locks, but none
    /// is cached, and nothing is offloaded.
    pub fn p_sherman() -> Self {
        Config { leaf_admission: 0, offload: Offload::Never, ..Config::default() }
    }
}

/// A range of keys that one compute node owns, or none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartitionInfo {
    /// The lowest key.
    pub low: Vec<u8>,
    /// The key at which the next partition begins; `None` for the last partition.
    pub high: Option<Vec<u8>>,
    /// The owner, as far as the pool knows it; `None` if nobody owns these keys.
    pub owner: Option<String>,
    /// Is it this compute node?
    pub is_own: bool,
}

/// How a round of a command has ended.
enum Round {
    Done,
    Again,
    /// Another command has the turn.
    Queued,
}

impl Round {
    fn done_if(done: bool) -> Round {
        if done { Round::Done } else { Round::Again }
    }
}

/// From a low key up to a high key, or to the end.
#[derive(Clone)]
pub(super) struct Keys {
    low: Vec<u8>,
    high: Option<Vec<u8>>,
}

impl Keys {
    /// The keys within these bounds; `None` if there cannot be any.
    fn within((from, to): KeyBounds<'_>) -> Option<Keys> {
        let next = |key: &[u8]| [key, &[0]].concat();
        let low = match from {
            Bound::Unbounded => Vec::new(),
            Bound::Included(key) => key.to_vec(),
            Bound::Excluded(key) => next(key),
        };
        let high = match to {
            Bound::Unbounded => None,
            Bound::Included(key) => Some(next(key)),
            Bound::Excluded(key) => Some(key.to_vec()),
        };
        high.as_ref().is_none_or(|high| low < *high).then_some(Keys { low, high })
    }
    pub(super) fn range(&self) -> (&[u8], Option<&[u8]>) {
        (&self.low, self.high.as_deref())
    }
}

/// Can there be no key within these bounds?
pub(super) fn is_empty(bounds: KeyBounds<'_>) -> bool {
    Keys::within(bounds).is_none()
}

impl Map {
    /// The partitions that a range lies in: the range that it shares with each, and its owner.
    pub(super) fn pieces<'m>(
        &'m self,
        (low, end): (&'m [u8], Option<&'m [u8]>),
    ) -> impl Iterator<Item = ((&'m [u8], Option<&'m [u8]>), RemotePtr)> {
        self.partitions().filter_map(move |(partition, high)| {
            let from = (&*partition.low).max(low);
            let to = match (high, end) {
                (Some(a), Some(b)) => Some(a.min(b)),
                (a, b) => a.or(b),
            };
            to.is_none_or(|to| from < to).then_some(((from, to), partition.owner()))
        })
    }
}

impl Dex {
    /// Makes this compute node the owner of all keys within these bounds, also of those that another one owns. At some moment
    /// before this returns it owned all of them; another compute node that writes to them, or asks for them, gets them
    /// afterwards.
    ///
    /// An owner that is alive answers with its heartbeat. The setting `foreign` says what becomes of writes, not of commands.
    pub async fn own(&self, bounds: KeyBounds<'_>) -> Result<(), IndexError> {
        let Some(keys) = Keys::within(bounds) else { return Ok(()) };
        cold(self.own_all(&keys)).await
    }

    /// Gives the keys within these bounds back, as far as this compute node owns them: nobody owns them afterwards, until
    /// somebody writes to them or asks for them. Unbounded bounds give everything back, as a compute node does that leaves.
    ///
    /// Operations on these keys that are in progress end before. The client's heartbeat does the work, so this waits for one.
    pub async fn give_up(&self, bounds: KeyBounds<'_>) -> Result<(), IndexError> {
        let Some(keys) = Keys::within(bounds) else { return Ok(()) };
        cold(self.repeat(async |pin, backoff| self.give_up_once(pin, &keys, backoff).await)).await
    }

    /// Lists all partitions in the order of their keys.
    pub async fn partition_list(&self) -> Result<Vec<PartitionInfo>, IndexError> {
        let pin = self.tree().pin(self.tree().maintenance()).await?;
        let (_, map) = self.latest_map(pin.span()).await?;
        let owners: Vec<_> = map.partitions().map(|(partition, _)| partition.owner()).collect();
        let held = self.held(pin.span(), &owners).await?;
        let (me, mut list) = (self.own.record(), Vec::new());
        for ((partition, high), is_held) in map.partitions().zip(held) {
            let owner = match is_held {
                Some(true) => Some(farindex_pool::intent::holders(&self.session, pin.span(), partition.owner()).await?),
                _ => None,
            };
            let is_own = owner.is_some() && Some(partition.owner()) == me;
            list.push(PartitionInfo { low: partition.low.clone(), high: high.map(<[u8]>::to_vec), owner, is_own });
        }
        Ok(list)
    }

    /// Takes what nobody owns, or crashed compute nodes; then, with the turn of commands, what others own that are alive.
    async fn own_all(&self, keys: &Keys) -> Result<(), IndexError> {
        let (mut turn, mut wait) = (None, TurnWait::default());
        let owned =
            self.repeat(async |pin, backoff| self.own_once(pin, keys, backoff, (&mut turn, &mut wait)).await).await;
        let Some(turn) = turn else { return owned };
        match self.end_turn(turn).await {
            // The range was owned: what else fails is no failure of the command, but for a failed verb.
            Err(error @ IndexError::Fabric(_)) => owned.and(Err(error)),
            _ => owned,
        }
    }

    /// Tries something, with the turn to acquire, until it says that it is done.
    async fn repeat(
        &self,
        mut once: impl AsyncFnMut(&Pin<'_>, &mut Backoff) -> Result<Round, IndexError>,
    ) -> Result<(), IndexError> {
        let (mut backoff, mut full, mut rounds) = (Backoff::default(), 0, 0);
        while rounds < ROUNDS {
            let turn = self.turn_to_acquire().await;
            let pin = self.tree().pin(self.tree().maintenance()).await?;
            let round = match self.settle_pending(&pin, &mut backoff).await {
                Ok(()) => once(&pin, &mut backoff).await,
                Err(error) => Err(error),
            };
            drop((pin, turn));
            rounds += u32::from(!matches!(round, Ok(Round::Queued)));
            match round {
                Ok(Round::Done) => return Ok(()),
                Ok(Round::Again | Round::Queued) => drop(backoff.wait(&self.session).await),
                Err(error) => self.tree().wait_for_room(&mut full, error).await?,
            }
        }
        Err(IndexError::NotOwner { holder: "other compute nodes, which take these keys away all the time".to_owned() })
    }

    /// Is the lock of each of these owner records held? `None` if the record is no longer in use.
    async fn held(&self, span: &Span, records: &[RemotePtr]) -> Result<Vec<Option<bool>>, IndexError> {
        let mut batch = span.batch();
        let mut reads = Vec::with_capacity(records.len());
        for record in records {
            reads.push((!record.is_null()).then(|| batch.read(*record, PROPOSAL as usize)));
        }
        if reads.iter().all(Option::is_none) {
            return Ok(vec![Some(false); records.len()]);
        }
        let mut done = batch.post().await?;
        let states = records.iter().zip(reads).map(|(record, read)| {
            let Some(read) = read else { return Some(false) };
            let (free, held) = lock_words(self.tree().tag, *record);
            match done.buf(read).words() {
                [word] if *word == held => Some(true),
                [word] if *word == free => Some(false),
                _ => None,
            }
        });
        Ok(states.collect())
    }

    /// Makes one attempt to own all of the keys.
    async fn own_once<'d>(
        &'d self,
        pin: &Pin<'_>,
        keys: &Keys,
        backoff: &mut Backoff,
        (turn, wait): (&mut Option<CommandTurn<'d>>, &mut TurnWait),
    ) -> Result<Round, IndexError> {
        let (word, map) = self.latest_map(pin.span()).await?;
        let me = self.own_record(pin).await?;
        let foreign: Vec<_> = map.pieces(keys.range()).filter(|(_, owner)| *owner != me).collect();
        let Some((_, first)) = foreign.first() else { return Ok(Round::Done) };
        let mut owners: Vec<_> = foreign.iter().map(|(_, owner)| *owner).collect();
        owners.dedup();
        let held = self.held(pin.span(), &owners).await?;
        let state =
            |owner: RemotePtr| owners.iter().zip(&held).find(|(of, _)| **of == owner).and_then(|(_, held)| *held);
        // The word of a record is written anew only after the map has changed.
        if held.contains(&None) {
            return Ok(Round::Again);
        }
        let give = |wanted: &dyn Fn(RemotePtr) -> bool| {
            let wanted = foreign.iter().filter(|(_, owner)| wanted(*owner));
            wanted
                .fold(None, |next: Option<Map>, (range, _)| Some(next.as_ref().unwrap_or(&map).give(word, *range, me)))
        };
        if let Some(next) = give(&|owner| state(owner) == Some(false)) {
            mark!("dex: range without an owner was taken by command");
            self.check_size(&next)?;
            self.install(pin, (word, &map), next).await?;
            return Ok(Round::done_if(self.owns(keys)));
        }
        let owner = *first;
        let Some(alive) = self.take_over(pin, owner).await? else { return Ok(Round::Again) };
        if turn.is_none() {
            *turn = self.try_command_turn(pin, &map, (me, keys), wait).await?;
            if turn.is_none() {
                return Ok(Round::Queued);
            }
        }
        let Some(next) = give(&|of| of == owner) else { return Ok(Round::Again) };
        self.check_size(&next)?;
        let proposal = match self.propose(pin, owner, (word, &map), next).await? {
            Ok(proposal) => proposal,
            Err(ahead) => {
                check_owner(pin, backoff, alive, ahead).await?;
                return Ok(Round::Again);
            }
        };
        mark!("dex: range was asked for by command");
        self.await_answer(pin, self.pending(proposal), backoff).await?;
        Ok(Round::done_if(self.owns(keys)))
    }

    /// Does this compute node own all of these keys, by the latest map that it has seen? A map that has just changed is looked
    /// at before the turn to acquire goes on: two commands of one compute node would undo each other's work for ever.
    fn owns(&self, keys: &Keys) -> bool {
        // No operation waits for what a command has got, so it is kept for none.
        self.own.used();
        let me = self.own.record();
        self.own.map().1.pieces(keys.range()).all(|(_, owner)| Some(owner) == me)
    }

    /// Makes one attempt to own none of the keys.
    async fn give_up_once(&self, pin: &Pin<'_>, keys: &Keys, backoff: &mut Backoff) -> Result<Round, IndexError> {
        let (word, map) = self.latest_map(pin.span()).await?;
        let Some(me) = self.own.record() else { return Ok(Round::Done) };
        let range = keys.range();
        if map.pieces(range).all(|(_, owner)| owner != me) {
            return Ok(Round::Done);
        }
        let next = map.give_up(word, range, me);
        self.check_size(&next)?;
        let Ok(proposal) = self.propose(pin, me, (word, &map), next).await? else {
            mark!("dex: what another client asks for goes before what is given back");
            return Ok(Round::Again);
        };
        mark!("dex: range was given back by command");
        // Not even what no operation has used yet is kept.
        self.own.used();
        self.await_answer(pin, self.pending(proposal), backoff).await?;
        self.own.used();
        Ok(Round::done_if(self.own.map().1.pieces(range).all(|(_, owner)| owner != me)))
    }

    /// A command moves exactly the range that it names, so it fails where a write takes the whole partition.
    fn check_size(&self, next: &Map) -> Result<(), IndexError> {
        let count = next.partitions().count();
        if count <= MOST + 2 {
            return Ok(());
        }
        Err(IndexError::BadConfig(format!("{count} partitions: an index has at most {}", MOST + 2)))
    }
}
