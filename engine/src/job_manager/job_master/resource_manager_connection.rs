//! The JobMaster's registration at the ResourceManager.
//!
//! Pure: says when to try, and for how long an answer counts.

use std::time::Duration;

use crate::base::{
    clock::Timestamp,
    config::{Configuration, options},
    ids::ResourceManagerId,
};

/// Times of the registration.
#[derive(Clone, Debug, Eq, PartialEq)]
struct Times {
    initial: Duration,
    max: Duration,
    refused: Duration,
    heartbeat_timeout: Duration,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum State {
    Registering { next_try: Timestamp, pause: Duration },
    Registered { id: ResourceManagerId, last_heard: Timestamp },
}

/// A registration that is tried, or stands.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ResourceManagerConnection {
    times: Times,
    state: State,
}

impl ResourceManagerConnection {
    /// Begins to register at once.
    pub fn new(configuration: &Configuration, now: Timestamp) -> Self {
        let times = Times {
            initial: configuration.get(&options::REGISTRATION_INITIAL_TIMEOUT),
            max: configuration.get(&options::REGISTRATION_MAX_TIMEOUT),
            refused: configuration.get(&options::REGISTRATION_REFUSED_DELAY),
            heartbeat_timeout: configuration.get(&options::HEARTBEAT_TIMEOUT),
        };
        let state = State::Registering { next_try: now, pause: times.initial };
        Self { times, state }
    }

    /// The leadership at which the JobMaster is registered.
    pub fn registered(&self) -> Option<ResourceManagerId> {
        match self.state {
            State::Registering { .. } => None,
            State::Registered { id, .. } => Some(id),
        }
    }

    /// True if a registration is to be sent; the pause before the next doubles.
    /// A ResourceManager that was silent for too long counts as lost.
    pub fn take_try(&mut self, now: Timestamp) -> bool {
        if let State::Registered { id, last_heard } = self.state
            && last_heard.plus(self.times.heartbeat_timeout) <= now
        {
            tracing::warn!(resource_manager = %id, "the ResourceManager is silent, registering anew");
            self.state = State::Registering { next_try: now, pause: self.times.initial };
        }
        match &mut self.state {
            State::Registering { next_try, pause } if *next_try <= now => {
                *next_try = now.plus(*pause);
                *pause = (*pause * 2).min(self.times.max);
                true
            }
            State::Registering { .. } | State::Registered { .. } => false,
        }
    }

    /// The ResourceManager accepted the registration.
    pub fn accepted(&mut self, id: ResourceManagerId, now: Timestamp) {
        self.state = State::Registered { id, last_heard: now };
    }

    /// The ResourceManager refused the registration; it is tried again later.
    pub fn refused(&mut self, now: Timestamp) {
        let next_try = now.plus(self.times.refused);
        self.state = State::Registering { next_try, pause: self.times.initial };
    }

    /// The ResourceManager gave a sign of life.
    pub fn heard(&mut self, now: Timestamp) {
        if let State::Registered { last_heard, .. } = &mut self.state {
            *last_heard = now;
        }
    }

    /// When [`ResourceManagerConnection::take_try`] has something to do.
    pub fn next_deadline(&self) -> Timestamp {
        match self.state {
            State::Registering { next_try, .. } => next_try,
            State::Registered { last_heard, .. } => last_heard.plus(self.times.heartbeat_timeout),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pause_doubles_up_to_its_bound() {
        let mut connection = ResourceManagerConnection::new(&Configuration::default(), Timestamp(0));
        let mut tries = Vec::new();
        while tries.len() < 12 {
            let now = connection.next_deadline();
            assert!(connection.take_try(now));
            assert!(!connection.take_try(now));
            tries.push(now.0);
        }
        let pauses: Vec<_> = tries.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert_eq!(pauses, [100, 200, 400, 800, 1600, 3200, 6400, 12800, 25600, 30000, 30000]);
    }

    #[test]
    fn a_refusal_pauses_and_silence_begins_anew() {
        let mut connection = ResourceManagerConnection::new(&Configuration::default(), Timestamp(0));
        assert!(connection.take_try(Timestamp(0)));
        connection.refused(Timestamp(50));
        assert_eq!(connection.next_deadline(), Timestamp(30_050));
        assert!(connection.take_try(Timestamp(30_050)));
        let id = ResourceManagerId::random();
        connection.accepted(id, Timestamp(30_060));
        assert_eq!(connection.registered(), Some(id));
        connection.heard(Timestamp(40_000));
        assert!(!connection.take_try(Timestamp(89_999)));
        assert!(connection.take_try(Timestamp(90_000)));
        assert_eq!(connection.registered(), None);
    }
}
