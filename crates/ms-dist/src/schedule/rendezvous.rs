//! What stages wait for between their actions with rendezvous messages, which both sides complete together.

use super::{Action, Deadlock, PassId, Schedule};

/// A message from one place of the chain to another: the activation of a micro-batch, or its gradient.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Message {
    /// Micro-batch, from 0.
    pub micro: usize,
    /// The place in the chain that it comes from.
    pub from: usize,
    /// The place that it is for.
    pub to: usize,
}

/// A stage's part in a message: receiving one, or waiting for its own to be received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rendezvous {
    /// It takes the message.
    Receive(Message),
    /// It waits until its own message is taken.
    WaitSent(Message),
}

impl Schedule {
    /// What `stage` does before each of its actions, and after the last, if both sender and receiver wait for every message
    /// as soon as it exists. All stages process their messages in one order, that of the simulated times, so they cannot
    /// deadlock.
    ///
    /// # Errors
    /// As [`Schedule::simulate`].
    pub fn rendezvous(&self, stage: usize) -> Result<Vec<Vec<Rendezvous>>, Deadlock> {
        let spans = self.simulate()?.spans;
        let mut messages = Vec::new();
        for (from, actions) in self.stages.iter().enumerate() {
            for (&action, &(_, end)) in actions.iter().zip(&spans[from]) {
                let PassId { micro, chunk } = action.pass();
                let at = self.chain.position(from, chunk);
                let to = match action {
                    Action::Forward { .. } => Some(at + 1).filter(|to| *to < self.chain.len()),
                    Action::Backward { .. } | Action::BackwardInput { .. } => at.checked_sub(1),
                    Action::BackwardWeight { .. } => None,
                };
                messages.extend(to.map(|to| (end, Message { micro, from: at, to })));
            }
        }
        messages.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        let begins: Vec<f64> = spans[stage].iter().map(|span| span.0).collect();
        let mut all = vec![Vec::new(); begins.len() + 1];
        for (at, message) in messages {
            let (from, to) = (self.chain[message.from].stage, self.chain[message.to].stage);
            let what = match (from == stage, to == stage) {
                (true, false) => Rendezvous::WaitSent(message),
                (false, true) => Rendezvous::Receive(message),
                _ => continue,
            };
            // Before the action that starts when it is available, or later.
            all[begins.partition_point(|&begin| begin < at)].push(what);
        }
        Ok(all)
    }
}
