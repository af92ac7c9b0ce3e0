//! [`Timers`]: what a call registers and deletes, and the timers that it fires.
//!
//! Registrations and deletions are gathered, the last one of a timer counts, and are
//! sent to the host when the call ends, or when they are many. While timers fire, those of the call are
//! known here: one that is deleted does not fire, and one that is registered for an
//! earlier time than the last of the call is fired by it, in its order. If those are many,
//! the host gets them with all that has not fired, and fires them by other calls: one call
//! neither keeps nor fires any number of timers.
//!
//! To find a timer again takes an index. There is none as long as only timers are registered of
//! which is known that they are new, as those of windows are.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
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
const EARLY_BYTES: usize = 1 << 20;
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
    /// Places in `queued` by identity; made when it is first needed.
    index: Option<HashTable<u32>>,
    firing: Option<Firing>,
}

struct Queued {
    start: usize,
    end: usize,
    /// Identity, hashed.
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
    /// The one of them that was claimed last.
    current: usize,
    /// Places in `batch` by identity; made when it is first needed.
    index: Option<HashTable<u32>>,
    /// Registered meanwhile, no later than the last of the batch.
    early: BTreeMap<i64, Moment>,
    /// Bytes of all that were ever in `early`, about.
    early_bytes: usize,
    /// True if the host got all that had not fired: the call fires nothing any more.
    is_over: bool,
}

/// Timers of one time, in the order in which they were registered.
#[derive(Default)]
struct Moment {
    /// Keys and namespaces, with their lengths.
    bytes: Vec<u8>,
    timers: Vec<EarlyTimer>,
    /// How many of them had their turn.
    taken: usize,
    /// Places in `timers` by identity; made when it is first needed.
    index: Option<HashTable<u32>>,
}

struct EarlyTimer {
    start: usize,
    end: usize,
    /// Hash of the key.
    hash: u32,
    is_pending: bool,
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
    /// It was, and the host was told of it since.
    FiredAndTold,
}

/// What becomes of a timer.
#[derive(Clone, Copy, Eq, PartialEq)]
enum Change {
    Register,
    /// Of a timer that is not registered.
    RegisterNew,
    Delete,
}

/// Identity of a timer among those of one time, hashed.
fn identity_at_moment(hash: u32, namespace: &[u8]) -> u64 {
    identity(TimeDomain::EventTime, 0, hash, namespace)
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
        self.0.queue.borrow_mut().note(Change::Register, domain, timestamp, hash, key, namespace);
    }

    /// Registers a timer that is not registered yet, which costs less. One that is fires twice.
    ///
    /// # Panics
    /// Panics for the timestamp that stands for none.
    pub(crate) fn register_new(&self, domain: TimeDomain, timestamp: i64, hash: u32, key: &[u8], namespace: &[u8]) {
        assert!(timestamp != NO_TIMESTAMP, "a timer needs a time");
        self.0.queue.borrow_mut().note(Change::RegisterNew, domain, timestamp, hash, key, namespace);
    }

    /// Deletes a timer, if there is one.
    pub(crate) fn delete(&self, domain: TimeDomain, timestamp: i64, hash: u32, key: &[u8], namespace: &[u8]) {
        self.0.queue.borrow_mut().note(Change::Delete, domain, timestamp, hash, key, namespace);
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
        let (early, bytes_of_firing) = (BTreeMap::new(), Rc::clone(&bytes));
        self.0.queue.borrow_mut().firing = Some(Firing {
            domain,
            bytes: bytes_of_firing,
            batch,
            current: 0,
            index: None,
            early,
            early_bytes: 0,
            is_over: false,
        });
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
        let firing = queue.firing.as_mut().expect("timers fire");
        firing.current = number;
        let timer = &mut firing.batch[number];
        let is_pending = timer.state == TimerState::Pending;
        timer.state = TimerState::Fired;
        is_pending
    }

    /// Takes a timer that was registered meanwhile and comes no later than `timestamp`; `bytes`
    /// become its key and namespace.
    pub(crate) fn take_early<'a>(&self, timestamp: i64, bytes: &'a mut Vec<u8>) -> Option<Timer<'a>> {
        let mut queue = self.0.queue.borrow_mut();
        let early = &mut queue.firing.as_mut()?.early;
        let (timestamp, hash) = loop {
            let mut moment = early.first_entry().filter(|moment| *moment.key() <= timestamp)?;
            if let Some(hash) = moment.get_mut().take(bytes) {
                break (*moment.key(), hash);
            }
            moment.remove();
        };
        let (key, namespace) = split(bytes);
        Some(Timer { timestamp, hash, key, namespace })
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
    fn note(&mut self, change: Change, domain: TimeDomain, timestamp: i64, hash: u32, key: &[u8], namespace: &[u8]) {
        if let Some(firing) = &mut self.firing
            && firing.domain == domain
            && firing.note(change, timestamp, hash, key, namespace)
        {
            if EARLY_BYTES < firing.early_bytes {
                self.give_back();
            }
            return;
        }
        self.enqueue(change, (domain, timestamp), hash, key, namespace);
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
            self.enqueue(Change::Register, (domain, timestamp), key_hash(key), key, namespace);
        }
        for (timestamp, moment) in early {
            for (hash, key, namespace) in moment.left() {
                self.enqueue(Change::Register, (domain, timestamp), hash, key, namespace);
            }
        }
    }

    fn enqueue(
        &mut self,
        change: Change,
        (domain, timestamp): (TimeDomain, i64),
        hash: u32,
        key: &[u8],
        namespace: &[u8],
    ) {
        let Self { bytes, queued, index, .. } = self;
        let start = bytes.len();
        write_timer(domain, timestamp, key, namespace, bytes);
        let hash = identity(domain, timestamp, hash, namespace);
        let is_registered = change != Change::Delete;
        if change != Change::RegisterNew || index.is_some() {
            let index = index.get_or_insert_with(|| index_of(queued.iter().map(|timer| timer.hash)));
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
            index.insert_unique(hash, place, |place| queued[*place as usize].hash);
        }
        queued.push(Queued { start, end: bytes.len(), hash, is_registered });
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
        *index = None;
    }
}

/// Places by hash.
fn index_of(hashes: impl Iterator<Item = u64>) -> HashTable<u32> {
    let hashes: Vec<u64> = hashes.collect();
    let mut index = HashTable::with_capacity(hashes.len());
    for (place, hash) in (0_u32..).zip(&hashes) {
        index.insert_unique(*hash, place, |place| hashes[*place as usize]);
    }
    index
}

impl Moment {
    /// Takes the next timer that is to fire: its hash, and into `bytes` its key and namespace.
    fn take(&mut self, bytes: &mut Vec<u8>) -> Option<u32> {
        let left = &self.timers[self.taken..];
        let waits = left.iter().position(|timer| timer.is_pending)?;
        let timer = &left[waits];
        self.taken += waits + 1;
        bytes.clear();
        bytes.extend_from_slice(&self.bytes[timer.start..timer.end]);
        Some(timer.hash)
    }

    /// Timers that have not had their turn: hash, key and namespace.
    fn left(&self) -> impl Iterator<Item = (u32, &[u8], &[u8])> {
        let left = self.timers[self.taken..].iter().filter(|timer| timer.is_pending);
        left.map(|timer| {
            let (key, namespace) = split(&self.bytes[timer.start..timer.end]);
            (timer.hash, key, namespace)
        })
    }

    /// Place of a timer that has not had its turn.
    fn find(&mut self, hash: u32, key: &[u8], namespace: &[u8]) -> Option<usize> {
        let Self { bytes, timers, taken, index } = self;
        let parts = |timer: &EarlyTimer| split(&bytes[timer.start..timer.end]);
        let index = index
            .get_or_insert_with(|| index_of(timers.iter().map(|timer| identity_at_moment(timer.hash, parts(timer).1))));
        let found = index.find(identity_at_moment(hash, namespace), |place| {
            let timer = &timers[*place as usize];
            *taken <= *place as usize && timer.hash == hash && parts(timer) == (key, namespace)
        });
        found.map(|place| *place as usize)
    }

    /// Returns the bytes that the timers take more.
    fn note(&mut self, change: Change, hash: u32, key: &[u8], namespace: &[u8]) -> usize {
        if change != Change::RegisterNew
            && let Some(place) = self.find(hash, key, namespace)
        {
            self.timers[place].is_pending = change == Change::Register;
            return 0;
        }
        if change == Change::Delete {
            return 0;
        }
        let Self { bytes, timers, index, .. } = self;
        let start = bytes.len();
        write_counted(key, bytes);
        write_counted(namespace, bytes);
        let place = u32::try_from(timers.len()).expect("a call registers fewer timers");
        timers.push(EarlyTimer { start, end: bytes.len(), hash, is_pending: true });
        if let Some(index) = index {
            index.insert_unique(identity_at_moment(hash, namespace), place, |place| {
                let timer = &timers[*place as usize];
                identity_at_moment(timer.hash, split(&bytes[timer.start..timer.end]).1)
            });
        }
        EARLY_TIMER_BYTES + bytes.len() - start
    }
}

impl Firing {
    /// True if the timer is one that the host does not have: of this call, or before its last.
    fn note(&mut self, change: Change, timestamp: i64, hash: u32, key: &[u8], namespace: &[u8]) -> bool {
        let Some(last) = self.batch.last().map(|timer| timer.timestamp) else {
            return false;
        };
        if last < timestamp || self.is_over {
            return false;
        }
        if change != Change::RegisterNew {
            let place = self.find(timestamp, hash, key, namespace);
            match place.map(|place| (&mut self.batch[place].state, change)) {
                Some((state @ (TimerState::Pending | TimerState::Deleted), Change::Delete)) => {
                    *state = TimerState::Deleted;
                    return true;
                }
                Some((state @ (TimerState::Pending | TimerState::Deleted), _)) => {
                    *state = TimerState::Pending;
                    return true;
                }
                Some((TimerState::Fired | TimerState::FiredAndTold, _)) | None => {}
            }
            let is_early =
                self.early.get_mut(&timestamp).is_some_and(|moment| moment.find(hash, key, namespace).is_some());
            if !is_early {
                // The host has no timer any more that fired, and may have others for the very time of the last.
                let has_fired = place.is_some_and(|place| self.batch[place].state == TimerState::Fired);
                if change == Change::Delete && (has_fired || timestamp < last) {
                    return true;
                }
                if timestamp == last {
                    if let Some(place) = place {
                        self.batch[place].state = TimerState::FiredAndTold;
                    }
                    return false;
                }
            }
        }
        self.early_bytes += self.early.entry(timestamp).or_default().note(change, hash, key, namespace);
        true
    }

    fn find(&mut self, timestamp: i64, hash: u32, key: &[u8], namespace: &[u8]) -> Option<usize> {
        let Self { domain, bytes, batch, current, index, .. } = self;
        let is = |timer: &FiringTimer| {
            timer.timestamp == timestamp && split(&bytes[timer.start..timer.end]) == (key, namespace)
        };
        // Mostly it is the one that fires.
        if batch.get(*current).is_some_and(is) {
            return Some(*current);
        }
        let hash_of = |timer: &FiringTimer| {
            let (key, namespace) = split(&bytes[timer.start..timer.end]);
            identity(*domain, timer.timestamp, key_hash(key), namespace)
        };
        let index = index.get_or_insert_with(|| index_of(batch.iter().map(hash_of)));
        let found = index.find(identity(*domain, timestamp, hash, namespace), |place| is(&batch[*place as usize]));
        found.map(|place| *place as usize)
    }
}
