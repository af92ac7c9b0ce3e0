//! Who leads, and how others find out.
//!
//! Contenders are the components with an address that only a leader has: Dispatcher,
//! ResourceManager, and one JobMaster per job. A grant gives each contender a fresh
//! session, which is the [`Fence`] of its messages. A contender confirms its session
//! when it is ready to be reached; only then listeners see it.
//!
//! Invariants: no session is granted twice; a confirmation of any session but the
//! current one changes nothing; after a revocation nobody is published. Grants and
//! revocations are serialised by one lock, and a contender sees the latest of them:
//! it may miss one in between, since it cannot have confirmed anything under it.
//!
//! In one process [`LeaderElection::new`] leads from the start. An election between
//! processes calls [`LeaderElection::grant`] and [`LeaderElection::revoke`].
//!
//! Source: Flink's DefaultLeaderElectionService.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use rand::RngCore;
use tokio::sync::watch;

use crate::{
    base::ids::{DispatcherId, JobMasterId, ResourceManagerId},
    protocol::rpc::{Address, Fence},
};

/// Draws the 16 bytes of a session.
pub type SessionSource = Box<dyn FnMut() -> [u8; 16] + Send>;

/// An address that somebody contends for already, or that has no leader.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum ElectionError {
    /// There is one contender per address in a process.
    #[error("{0} contends for leadership already")]
    Contended(Address),
    /// TaskExecutors and clients are not elected.
    #[error("{0} is not elected")]
    NotElected(Address),
}

/// The election of all components of a process. Cloning gives another handle.
#[derive(Clone)]
pub struct LeaderElection {
    /// A lock and no message: contenders and listeners ask from handlers that cannot
    /// wait, and it is held for a look-up or an insertion.
    state: Arc<Mutex<State>>,
}

struct State {
    is_leading: bool,
    draw_session: SessionSource,
    components: BTreeMap<Address, Component>,
    registrations: u64,
}

struct Component {
    /// Number of the contender; none: there are only listeners.
    contender: Option<u64>,
    granted: watch::Sender<Option<Fence>>,
    published: watch::Sender<Option<Fence>>,
}

impl Default for LeaderElection {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for LeaderElection {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("LeaderElection").finish_non_exhaustive()
    }
}

impl LeaderElection {
    /// An election that this process has won.
    pub fn new() -> Self {
        let mut election = Self::with_sessions(Box::new(|| {
            let mut bytes = [0; 16];
            rand::rng().fill_bytes(&mut bytes);
            bytes
        }));
        election.grant();
        election
    }

    /// An election that nobody has won yet, with sessions from `draw_session`, which
    /// never returns the same bytes twice.
    pub fn with_sessions(draw_session: SessionSource) -> Self {
        let state = State { is_leading: false, draw_session, components: BTreeMap::new(), registrations: 0 };
        Self { state: Arc::new(Mutex::new(state)) }
    }

    /// This process leads: every contender is granted a session of its own.
    pub fn grant(&mut self) {
        let state = &mut *self.lock();
        if state.is_leading {
            return;
        }
        state.is_leading = true;
        for (address, component) in &state.components {
            if component.contender.is_some() {
                component.granted.send_replace(session(address, (state.draw_session)()));
            }
        }
    }

    /// This process no longer leads: what was published is withdrawn at once.
    pub fn revoke(&mut self) {
        let mut state = self.lock();
        state.is_leading = false;
        for component in state.components.values() {
            component.published.send_replace(None);
            component.granted.send_replace(None);
        }
    }

    /// Enters a contender, which is granted a session at once if this process leads.
    ///
    /// # Errors
    /// Returns an error if there is a contender for the address, or cannot be one.
    pub fn contend(&self, address: Address) -> Result<Contender, ElectionError> {
        let state = &mut *self.lock();
        if session(&address, [0; 16]).is_none() {
            return Err(ElectionError::NotElected(address));
        }
        state.registrations += 1;
        let registration = state.registrations;
        let component = state.components.entry(address.clone()).or_insert_with(Component::new);
        if component.contender.is_some() {
            return Err(ElectionError::Contended(address));
        }
        component.contender = Some(registration);
        if state.is_leading {
            component.granted.send_replace(session(&address, (state.draw_session)()));
        }
        let granted = component.granted.subscribe();
        Ok(Contender { address, registration, granted, election: self.clone() })
    }

    /// The published session of an address.
    pub fn leader(&self, address: &Address) -> Option<Fence> {
        self.lock().components.get(address).and_then(|component| *component.published.borrow())
    }

    /// The published session of an address, with its changes.
    pub fn listen(&self, address: Address) -> watch::Receiver<Option<Fence>> {
        self.lock().components.entry(address).or_insert_with(Component::new).published.subscribe()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Component {
    fn new() -> Self {
        Self { contender: None, granted: watch::Sender::new(None), published: watch::Sender::new(None) }
    }
}

fn session(address: &Address, bytes: [u8; 16]) -> Option<Fence> {
    match address {
        Address::Dispatcher => Some(Fence::Dispatcher(DispatcherId::from_bytes(bytes))),
        Address::ResourceManager => Some(Fence::ResourceManager(ResourceManagerId::from_bytes(bytes))),
        Address::JobMaster(_) => Some(Fence::JobMaster(JobMasterId::from_bytes(bytes))),
        Address::TaskExecutor(_) | Address::Client(_) => None,
    }
}

/// A component that contends; dropping it withdraws it.
#[derive(Debug)]
pub struct Contender {
    address: Address,
    registration: u64,
    granted: watch::Receiver<Option<Fence>>,
    election: LeaderElection,
}

impl Contender {
    /// The session that is granted now.
    pub fn session(&self) -> Option<Fence> {
        *self.granted.borrow()
    }

    /// Waits for the next grant or revocation and returns the session after it.
    ///
    /// # Cancel safety
    /// No change is lost if the future is dropped.
    pub async fn changed(&mut self) -> Option<Fence> {
        if self.granted.changed().await.is_err() {
            return None;
        }
        *self.granted.borrow_and_update()
    }

    /// Publishes the session if it is the granted one, and says whether it is.
    pub fn confirm(&self, session: Fence) -> bool {
        let state = self.election.lock();
        let Some(component) = state.components.get(&self.address) else { return false };
        let is_current =
            component.contender == Some(self.registration) && *component.granted.borrow() == Some(session);
        if is_current {
            component.published.send_replace(Some(session));
        }
        is_current
    }
}

impl Drop for Contender {
    fn drop(&mut self) {
        let mut state = self.election.lock();
        let Some(component) = state.components.get_mut(&self.address) else { return };
        component.contender = None;
        component.granted.send_replace(None);
        component.published.send_replace(None);
        if component.published.receiver_count() == 0 {
            state.components.remove(&self.address);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::ids::JobId;

    /// An election whose sessions are 1, 2, 3, and so on.
    fn numbered() -> LeaderElection {
        let mut number = 0;
        LeaderElection::with_sessions(Box::new(move || {
            number += 1;
            [number; 16]
        }))
    }

    fn dispatcher(number: u8) -> Option<Fence> {
        Some(Fence::Dispatcher(DispatcherId::from_bytes([number; 16])))
    }

    #[test]
    fn a_grant_reaches_all_contenders_and_later_ones() {
        let mut election = numbered();
        let first = election.contend(Address::Dispatcher).unwrap();
        assert_eq!(first.session(), None);
        election.grant();
        assert_eq!(first.session(), dispatcher(1));
        let job = Address::JobMaster(JobId::from_bytes([9; 16]));
        let second = election.contend(job).unwrap();
        assert_eq!(second.session(), Some(Fence::JobMaster(JobMasterId::from_bytes([2; 16]))));
    }

    #[test]
    fn a_leader_is_published_only_when_it_confirms_its_session() {
        let election = numbered();
        election.clone().grant();
        let contender = election.contend(Address::Dispatcher).unwrap();
        let listener = election.listen(Address::Dispatcher);
        assert_eq!(*listener.borrow(), None);
        assert!(contender.confirm(dispatcher(1).unwrap()));
        assert_eq!(*listener.borrow(), dispatcher(1));
        assert_eq!(election.leader(&Address::Dispatcher), dispatcher(1));
    }

    #[test]
    fn a_stale_confirmation_changes_nothing() {
        let mut election = numbered();
        election.grant();
        let contender = election.contend(Address::Dispatcher).unwrap();
        election.revoke();
        assert!(!contender.confirm(dispatcher(1).unwrap()));
        assert_eq!(election.leader(&Address::Dispatcher), None);
        election.grant();
        assert!(!contender.confirm(dispatcher(1).unwrap()));
        assert!(contender.confirm(dispatcher(2).unwrap()));
        assert!(!contender.confirm(dispatcher(1).unwrap()));
        assert_eq!(election.leader(&Address::Dispatcher), dispatcher(2));
    }

    #[test]
    fn a_second_grant_is_none() {
        let mut election = numbered();
        election.grant();
        let contender = election.contend(Address::Dispatcher).unwrap();
        election.grant();
        assert_eq!(contender.session(), dispatcher(1));
    }

    #[test]
    fn a_contender_that_goes_is_withdrawn_and_makes_room() {
        let election = numbered();
        election.clone().grant();
        let first = election.contend(Address::Dispatcher).unwrap();
        assert!(first.confirm(dispatcher(1).unwrap()));
        let taken = election.contend(Address::Dispatcher).err();
        assert_eq!(taken, Some(ElectionError::Contended(Address::Dispatcher)));
        let client = election.contend(Address::Client(1)).err();
        assert_eq!(client, Some(ElectionError::NotElected(Address::Client(1))));
        drop(first);
        assert_eq!(election.leader(&Address::Dispatcher), None);
        assert_eq!(election.contend(Address::Dispatcher).unwrap().session(), dispatcher(2));
    }

    #[tokio::test]
    async fn a_contender_waits_for_the_latest_change() {
        let mut election = numbered();
        let mut contender = election.contend(Address::Dispatcher).unwrap();
        election.grant();
        election.revoke();
        election.grant();
        assert_eq!(contender.changed().await, dispatcher(2));
    }
}
