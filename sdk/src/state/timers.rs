//! [`Timers`]: what a call registers and deletes, and the timers that it fires.
//!
//! Registrations and deletions are gathered, the last one of a timer counts, and are
//! sent to the host when the call ends, or when they are many. While timers fire, those of the call are
//! known here: one that is deleted does not fire, and one that is registered for an
//! earlier time than the last of the call is fired by it, in its order. If those are many,
//! the host gets them with all that has not fired, and fires them by other calls: one call
//! neither keeps nor fires any number of timers.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeSet,
    rc::Rc,
};

use engine_rows::{key_hash::key_hash, row::NO_TIMESTAMP};
use hashbrown::HashTable;

use super::{Clock, table::mix, wire::write_counted};
use crate::{
    bindings::exports::engine::plugin::operator_chain::TimeDomain,
    host,
    record::{DecodeError, Reader},
};

/// A queue of more bytes is sent before the call ends.
const QUEUE_BYTES: usize = 64 << 10;

/// What a call may register to be fired by itself, in bytes, about.
const EARLY_BYTES: usize = 256 << 10;
/// Bytes of such a timer without those of its key and namespace, about.
const EARLY_TIMER_BYTES: usize = 64;

/// A timer that fires.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Timer<'a> {
    /// Milliseconds since the Unix epoch.
    pub(crate) timestamp: i64,
    /// Hash of the key.
    pub(crate) hash: u32,
    /// The encoded key.
    pub(crate) key: &'a [u8],
    pub(crate) namespace: &'a [u8],
}

/// The timers of the segment's first operator, and its time. A clone is the same.
#[derive(Clone)]
pub(crate) struct Timers(Rc<Shared>);

struct Shared {
    watermark: Cell<i64>,
    clock: Clock,
    queue: RefCell<Queue>,
}

/// What is to be sent, and what fires.
#[derive(Default)]
struct Queue {
    /// Timers as the host gets them, one behind the other.
    bytes: Vec<u8>,
    queued: Vec<Queued>,
    /// Places in `queued` by identity.
    index: HashTable<u32>,
    firing: Option<Firing>,
}

struct Queued {
    start: usize,
    end: usize,
    hash: u64,
    is_registered: bool,
}

/// The timers of a call that fires them.
struct Firing {
    domain: TimeDomain,
    /// As the host gave them, behind one another.
    bytes: Rc<[u8]>,
    /// In the order of their timestamps.
    batch: Vec<FiringTimer>,
    /// Places in `batch` by identity; made when it is first needed.
    index: Option<HashTable<u32>>,
    /// Registered meanwhile, before the last of the batch: timestamp, key, namespace.
    early: BTreeSet<(i64, Vec<u8>, Vec<u8>)>,
    /// Bytes of all that were ever in `early`, about.
    early_bytes: usize,
    /// True if the host got all that had not fired: the call fires nothing any more.
    is_over: bool,
}

struct FiringTimer {
    timestamp: i64,
    /// Range of key and namespace, with their lengths, in `bytes`.
    start: usize,
    end: usize,
    state: TimerState,
}

#[derive(Clone, Copy, Eq, PartialEq)]
enum TimerState {
    Pending,
    Deleted,
    Fired,
}

/// Identity of a timer, hashed.
fn identity(domain: TimeDomain, timestamp: i64, hash: u32, namespace: &[u8]) -> u64 {
    let time = timestamp.cast_unsigned().rotate_left(1) ^ u64::from(domain == TimeDomain::ProcessingTime);
    let mixed = (time ^ u64::from(mix(hash, namespace))).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    // The index takes its places from the low bits.
    mixed ^ (mixed >> 32)
}

fn write_timer(domain: TimeDomain, timestamp: i64, key: &[u8], namespace: &[u8], out: &mut Vec<u8>) {
    out.push(u8::from(domain == TimeDomain::ProcessingTime));
    out.extend_from_slice(&timestamp.to_le_bytes());
    write_counted(key, out);
    write_counted(namespace, out);
}

impl Timers {
    pub(super) fn new(clock: Clock) -> Self {
        Self(Rc::new(Shared { watermark: Cell::new(i64::MIN), clock, queue: RefCell::default() }))
    }

    /// The last watermark, milliseconds since the Unix epoch; the least i64 before the first.
    pub(crate) fn watermark(&self) -> i64 {
        self.0.watermark.get()
    }

    pub(crate) fn set_watermark(&self, watermark: i64) {
        self.0.watermark.set(watermark);
    }

    /// Milliseconds since the Unix epoch at the start of the call.
    pub(crate) fn processing_time(&self) -> i64 {
        self.0.clock.now()
    }

    /// Registers a timer; one that is registered twice is one.
    ///
    /// # Panics
    /// Panics for the timestamp that stands for none.
    pub(crate) fn register(&self, domain: TimeDomain, timestamp: i64, hash: u32, key: &[u8], namespace: &[u8]) {
        assert!(timestamp != NO_TIMESTAMP, "a timer needs a time");
        self.0.queue.borrow_mut().note(true, domain, timestamp, hash, key, namespace);
    }

    /// Deletes a timer, if there is one.
    pub(crate) fn delete(&self, domain: TimeDomain, timestamp: i64, hash: u32, key: &[u8], namespace: &[u8]) {
        self.0.queue.borrow_mut().note(false, domain, timestamp, hash, key, namespace);
    }

    /// Lets the host know what this call registered and deleted.
    pub(crate) fn end_call(&self) {
        self.0.queue.borrow_mut().send();
    }

    /// Takes the timers that a call fires; the bytes are as `fire-timers` gets them.
    ///
    /// # Errors
    /// Returns an error if the bytes are not timers.
    pub(crate) fn begin_firing(&self, domain: TimeDomain, timers: &[u8]) -> Result<Rc<[u8]>, DecodeError> {
        let mut batch = Vec::new();
        let mut reader = Reader::new(timers);
        while 0 < reader.remaining() {
            let timestamp = i64::from_le_bytes(reader.array()?);
            let start = timers.len() - reader.remaining();
            for _ in 0..2 {
                let count = reader.count()?;
                reader.bytes(count)?;
            }
            let end = timers.len() - reader.remaining();
            batch.push(FiringTimer { timestamp, start, end, state: TimerState::Pending });
        }
        let bytes: Rc<[u8]> = timers.into();
        let (early, bytes_of_firing) = (BTreeSet::new(), Rc::clone(&bytes));
        let firing =
            Firing { domain, bytes: bytes_of_firing, batch, index: None, early, early_bytes: 0, is_over: false };
        self.0.queue.borrow_mut().firing = Some(firing);
        Ok(bytes)
    }

    /// Number of timers that the call was given.
    pub(crate) fn firing_count(&self) -> usize {
        self.0.queue.borrow().firing.as_ref().map_or(0, |firing| firing.batch.len())
    }

    /// A timer that the call was given; `bytes` are those of [`Timers::begin_firing`].
    pub(crate) fn timer<'a>(&self, bytes: &'a [u8], number: usize) -> Timer<'a> {
        let queue = self.0.queue.borrow();
        let timer = &queue.firing.as_ref().expect("timers fire").batch[number];
        let (key, namespace) = split(&bytes[timer.start..timer.end]);
        Timer { timestamp: timer.timestamp, hash: key_hash(key), key, namespace }
    }

    /// True if the timer is to be fired now: it was not deleted meanwhile, and the host did not
    /// get it back.
    pub(crate) fn claim(&self, number: usize) -> bool {
        let mut queue = self.0.queue.borrow_mut();
        let timer = &mut queue.firing.as_mut().expect("timers fire").batch[number];
        let is_pending = timer.state == TimerState::Pending;
        timer.state = TimerState::Fired;
        is_pending
    }

    /// Takes a timer that was registered meanwhile and comes no later than `timestamp`.
    pub(crate) fn take_early(&self, timestamp: i64) -> Option<(i64, Vec<u8>, Vec<u8>)> {
        let mut queue = self.0.queue.borrow_mut();
        let early = &mut queue.firing.as_mut()?.early;
        if early.first()?.0 <= timestamp { early.pop_first() } else { None }
    }

    /// No timers fire any more.
    pub(crate) fn end_firing(&self) {
        self.0.queue.borrow_mut().firing = None;
    }
}

/// Key and namespace.
fn split(bytes: &[u8]) -> (&[u8], &[u8]) {
    let mut reader = Reader::new(bytes);
    let mut part = || reader.count().and_then(|count| reader.bytes(count)).expect("the timer was walked over");
    (part(), part())
}

impl Queue {
    fn note(
        &mut self,
        is_registered: bool,
        domain: TimeDomain,
        timestamp: i64,
        hash: u32,
        key: &[u8],
        namespace: &[u8],
    ) {
        if let Some(firing) = &mut self.firing
            && firing.domain == domain
            && firing.note(is_registered, timestamp, hash, key, namespace)
        {
            if EARLY_BYTES < firing.early_bytes {
                self.give_back();
            }
            return;
        }
        self.enqueue(is_registered, (domain, timestamp), hash, key, namespace);
    }

    /// Lets the host have all timers of the call that have not fired.
    #[cold]
    fn give_back(&mut self) {
        let Some(firing) = &mut self.firing else {
            return;
        };
        firing.is_over = true;
        let (domain, bytes) = (firing.domain, Rc::clone(&firing.bytes));
        let mut left = Vec::new();
        for timer in firing.batch.iter_mut().filter(|timer| timer.state == TimerState::Pending) {
            timer.state = TimerState::Fired;
            left.push((timer.timestamp, timer.start..timer.end));
        }
        let early = std::mem::take(&mut firing.early);
        for (timestamp, range) in left {
            let (key, namespace) = split(&bytes[range]);
            self.enqueue(true, (domain, timestamp), key_hash(key), key, namespace);
        }
        for (timestamp, key, namespace) in early {
            self.enqueue(true, (domain, timestamp), key_hash(&key), &key, &namespace);
        }
    }

    fn enqueue(
        &mut self,
        is_registered: bool,
        (domain, timestamp): (TimeDomain, i64),
        hash: u32,
        key: &[u8],
        namespace: &[u8],
    ) {
        let Self { bytes, queued, index, .. } = self;
        let start = bytes.len();
        write_timer(domain, timestamp, key, namespace, bytes);
        let hash = identity(domain, timestamp, hash, namespace);
        let known = index.find(hash, |place| {
            let other = &queued[*place as usize];
            other.hash == hash && bytes[other.start..other.end] == bytes[start..]
        });
        if let Some(place) = known {
            queued[*place as usize].is_registered = is_registered;
            bytes.truncate(start);
            return;
        }
        let place = u32::try_from(queued.len()).expect("a call registers fewer timers");
        queued.push(Queued { start, end: bytes.len(), hash, is_registered });
        index.insert_unique(hash, place, |place| queued[*place as usize].hash);
        if QUEUE_BYTES < bytes.len() {
            self.send();
        }
    }

    fn send(&mut self) {
        let Self { bytes, queued, index, .. } = self;
        if queued.is_empty() {
            return;
        }
        let mut out = Vec::with_capacity(bytes.len());
        for is_registered in [false, true] {
            let mut count = 0;
            out.clear();
            for timer in queued.iter().filter(|timer| timer.is_registered == is_registered) {
                out.extend_from_slice(&bytes[timer.start..timer.end]);
                count += 1;
            }
            match is_registered {
                _ if count == 0 => {}
                true => host::register_timers(count, &out),
                false => host::delete_timers(count, &out),
            }
        }
        bytes.clear();
        queued.clear();
        index.clear();
    }
}

impl Firing {
    /// True if the timer is one that the host does not have: of this call, or before its last.
    fn note(&mut self, is_registered: bool, timestamp: i64, hash: u32, key: &[u8], namespace: &[u8]) -> bool {
        let Some(last) = self.batch.last().map(|timer| timer.timestamp) else {
            return false;
        };
        if last < timestamp || self.is_over {
            return false;
        }
        if let Some(place) = self.find(timestamp, hash, key, namespace) {
            let timer = &mut self.batch[place];
            match (timer.state, is_registered) {
                (TimerState::Fired, _) => {}
                (_, true) => {
                    timer.state = TimerState::Pending;
                    return true;
                }
                (_, false) => {
                    timer.state = TimerState::Deleted;
                    return true;
                }
            }
        }
        // The host may have others for the very time of the last.
        if timestamp == last {
            return false;
        }
        let early = (timestamp, key.to_owned(), namespace.to_owned());
        match is_registered {
            true => {
                if self.early.insert(early) {
                    self.early_bytes += EARLY_TIMER_BYTES + key.len() + namespace.len();
                }
            }
            false => _ = self.early.remove(&early),
        }
        true
    }

    fn find(&mut self, timestamp: i64, hash: u32, key: &[u8], namespace: &[u8]) -> Option<usize> {
        let Self { domain, bytes, batch, index, .. } = self;
        let hash_of = |timer: &FiringTimer| {
            let (key, namespace) = split(&bytes[timer.start..timer.end]);
            identity(*domain, timer.timestamp, key_hash(key), namespace)
        };
        let index = index.get_or_insert_with(|| {
            let mut index = HashTable::with_capacity(batch.len());
            for (place, timer) in (0_u32..).zip(batch.iter()) {
                index.insert_unique(hash_of(timer), place, |place| hash_of(&batch[*place as usize]));
            }
            index
        });
        let found = index.find(identity(*domain, timestamp, hash, namespace), |place| {
            let timer = &batch[*place as usize];
            timer.timestamp == timestamp && split(&bytes[timer.start..timer.end]) == (key, namespace)
        });
        found.map(|place| *place as usize)
    }
}
