//! What a client takes in: greetings, and the answers to its batches.
//!
//! Invariants: it runs inside of a callback of UCX, on the bytes that UCX has received, and calls nothing of UCX; a message
//! that makes no sense changes nothing, or fails the batch that it answers.

use crate::chain::{self, Answer, Greeting, Status};
use crate::flights::{Flights, of_sequence};
use crate::line::Line;
use farindex_fabric::transport::{Completions, Traffic};
use farindex_remote::wire::Reader;

/// Where messages go.
pub(crate) struct Intake<'a> {
    pub(crate) lines: &'a mut [Line],
    pub(crate) flights: &'a mut Flights,
    pub(crate) traffic: &'a mut Traffic,
    pub(crate) completions: &'a mut dyn Completions,
    /// A batch has completed.
    pub(crate) any: bool,
}

impl Intake<'_> {
    /// Takes in one message.
    pub(crate) fn take(&mut self, message: &[u8]) {
        match Greeting::decode(message) {
            Some(Greeting { session, node }) => {
                if let Some(line) = self.lines.get_mut(node.index()) {
                    line.greet(session);
                }
            }
            None => self.answers(message),
        }
    }

    fn answers(&mut self, reply: &[u8]) {
        self.traffic.answers += 1;
        let mut rest = Reader::new(reply);
        while let Ok(Some(answer)) = Answer::take(&mut rest) {
            if let Some(number) = self.answer(answer) {
                self.flights.end(number, self.completions);
                self.any = true;
            }
        }
    }

    /// Puts an answer into its batch. Returns the batch if this was the last of its answers.
    #[inline]
    fn answer(&mut self, answer: Answer<'_>) -> Option<u64> {
        let (number, place) = of_sequence(answer.sequence);
        // A revocation is answered over the control channel alone.
        let flight = self.flights.get_mut(number).filter(|flight| flight.waits_for(place))?;
        let line = self.lines.get_mut(place)?;
        line.answered += 1;
        line.owed = line.owed.saturating_sub(1);
        match answer.status {
            Status::Done => {
                if let Err(why) = chain::fill(&mut flight.chain, line.node, answer) {
                    flight.fails(chain::senseless(line.node, why));
                }
            }
            status => {
                let verb = chain::refused_verb(&flight.chain, line.node, answer.verb);
                let error = chain::refusal(status, verb, line.node, line.len);
                flight.fails(error);
            }
        }
        flight.answered(place).then_some(number)
    }
}
