//! The turn of commands: of several compute nodes that take ranges from owners by command, one does so at a time, and keeps what
//! it has got until it has all of its range.
//!
//! Invariants: D6 in `docs/protocols/dex.md`. The turn is about progress alone. A change of the map keeps D1 and D2 with the
//! turn and without it, so a turn that was taken away, or that two believe to have, does no harm.

use super::Dex;
use super::map::{Map, place_of};
use super::ownership::Ownership;
use super::partitions::Keys;
use super::proposal::lock_words;
use crate::IndexError;
use crate::maintenance::read_word;
use crate::marks::mark;
use crate::tree::change::Puts;
use farindex_fabric::{Endpoint, RemotePtr};
use farindex_pool::Pin;
use std::time::Duration;

/// Word of the anchor that says whose turn it is.
const TURN: u64 = 24;
/// For how long a command keeps what it has got: some heartbeats, since every owner answers with one.
const KEEPS: Duration = Duration::from_millis(100);
/// Nobody's.
const NOBODY: u64 = 0;

/// A command that has the turn: its compute node gives nothing of the command's range away. When it is dropped, others may have
/// the range again; [`Dex::end_turn`] also lets the next command have the turn.
pub(super) struct CommandTurn<'o> {
    own: &'o Ownership,
    /// What word 3 of the anchor holds.
    word: u64,
}

impl Drop for CommandTurn<'_> {
    fn drop(&mut self) {
        self.own.set_command(None);
    }
}

/// The range of a command that has the turn, as the heartbeat sees it.
pub(super) struct Command {
    keys: Keys,
    /// Until when the compute node keeps what it has of the range. Operations that wait for it are pinned: while they wait, no
    /// memory is freed, and in a full pool the command itself may need some.
    until: Duration,
}

impl Command {
    /// Does the map `next` take away something of the range that `record` owns in the map `now`, for another compute node? What
    /// the compute node gives back itself goes to nobody.
    pub(super) fn is_against(&self, time: Duration, (now, next): (&Map, &Map), record: RemotePtr) -> bool {
        let is_taken = |range| next.pieces(range).any(|(_, owner)| !owner.is_null() && owner != record);
        time < self.until && now.pieces(self.keys.range()).any(|(range, owner)| owner == record && is_taken(range))
    }
}

/// How a command waits for the turn.
#[derive(Default)]
pub(super) struct TurnWait {
    /// The word of another command, and when it was seen first.
    seen: Option<(u64, Duration)>,
}

impl Dex {
    /// Takes the turn to command, if it is nobody's, or if the one that has it has lost it: its compute node has left, or it has
    /// had it for two leases. The caller has READ the map under this pin, so the anchor is there.
    pub(super) async fn try_command_turn(
        &self,
        pin: &Pin<'_>,
        map: &Map,
        (me, keys): (RemotePtr, &Keys),
        wait: &mut TurnWait,
    ) -> Result<Option<CommandTurn<'_>>, IndexError> {
        let (span, at) = (pin.span(), self.tree().anchor.add(TURN));
        let word = read_word(span, at).await?;
        let now = self.session.endpoint().now();
        if word != NOBODY && !self.is_lost(pin, map, (word, now), wait).await? {
            mark!("dex: a command waited for another one");
            return Ok(None);
        }
        let mine = self.own.next_word(me);
        if span.cas(at, word, mine).await? != word {
            return Ok(None);
        }
        let until = self.session.endpoint().now() + self.session.pool().lease().min(KEEPS);
        self.own.set_command(Some(Command { keys: keys.clone(), until }));
        Ok(Some(CommandTurn { own: &self.own, word: mine }))
    }

    async fn is_lost(
        &self,
        pin: &Pin<'_>,
        map: &Map,
        (word, now): (u64, Duration),
        wait: &mut TurnWait,
    ) -> Result<bool, IndexError> {
        let since = match wait.seen {
            Some((seen, since)) if seen == word => since,
            _ => wait.seen.insert((word, now)).1,
        };
        let record = place_of(word);
        let held = lock_words(self.tree().tag, record).1;
        // A record that the map names is in use as long as this pin stands.
        let has_left = map.is_member(record) && read_word(pin.span(), record).await? != held;
        let lost = has_left || now.saturating_sub(since) > self.session.pool().lease() * 2;
        if lost {
            mark!("dex: the turn of a command that does not end was taken");
        }
        Ok(lost)
    }

    /// Ends a turn, so that the next command can have it.
    pub(super) async fn end_turn(&self, turn: CommandTurn<'_>) -> Result<(), IndexError> {
        let word = turn.word;
        drop(turn);
        let pin = self.tree().pin(self.tree().maintenance()).await?;
        // If the index was dropped, something else lies there.
        self.latest_map(pin.span()).await?;
        pin.span().cas(self.tree().anchor.add(TURN), word, NOBODY).await?;
        Ok(())
    }
}

impl Ownership {
    /// Does the owner keep what a proposed map takes away, because a command of its own needs it?
    pub(super) fn keeps_for_command(&self, endpoint: &Endpoint, next: &Map, record: RemotePtr) -> bool {
        let (_, map) = self.map();
        self.command(|command| command.is_against(endpoint.now(), (&map, next), record))
    }
}
