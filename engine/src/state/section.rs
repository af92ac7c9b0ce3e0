//! The layout of a key group in a snapshot: a version, then operations that are done one
//! after the other, the same for every backend.
//!
//! A full snapshot has the operations that make the state, an increment those that
//! changed it. "Checkpoint format" in `ARCHITECTURE.md` describes the layout.

use super::TimeDomain;

/// First byte of each section.
pub(super) const VERSION: u8 = 1;

const PUT: u8 = 1;
const APPEND: u8 = 2;
const DELETE: u8 = 3;
const PUT_PAIR: u8 = 4;
const DELETE_PAIR: u8 = 5;
const NEXT_PAIR: u8 = 6;
const REGISTER_TIMER: u8 = 7;
const DELETE_TIMER: u8 = 8;
const DROP_TIMERS: u8 = 9;

/// Bytes of a number, at most.
const NUMBER_BYTES_MAX: u32 = 5;

/// What a value, list or map belongs to.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Owner<'a> {
    /// Place of the state.
    pub(super) state: usize,
    pub(super) key: &'a [u8],
    pub(super) namespace: &'a [u8],
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Timer<'a> {
    pub(super) domain: TimeDomain,
    pub(super) timestamp: i64,
    pub(super) key: &'a [u8],
    pub(super) namespace: &'a [u8],
}

/// One step of a section.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Operation<'a> {
    /// Sets a value or a list.
    Put(Owner<'a>, &'a [u8]),
    /// Adds elements to a list.
    Append(Owner<'a>, &'a [u8]),
    /// Deletes a value, a list, or a map whole.
    Delete(Owner<'a>),
    /// Sets the pair of a map: map key and value.
    PutPair(Owner<'a>, &'a [u8], &'a [u8]),
    /// Deletes the pair of a map.
    DeletePair(Owner<'a>, &'a [u8]),
    /// Sets another pair of the map that the operation before set one of.
    NextPair(&'a [u8], &'a [u8]),
    RegisterTimer(Timer<'a>),
    DeleteTimer(Timer<'a>),
    /// Deletes all timers up to a timestamp: they have fired.
    DropTimers(TimeDomain, i64),
}

pub(super) fn write_number(out: &mut Vec<u8>, mut number: u32) {
    while 0x80 <= number {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

fn write_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    write_number(out, u32::try_from(bytes.len()).expect("keys and values are shorter than 4 GiB"));
    out.extend_from_slice(bytes);
}

fn write_owner(out: &mut Vec<u8>, operation: u8, owner: Owner<'_>) {
    out.push(operation);
    write_number(out, u32::try_from(owner.state).expect("a plugin declares fewer states"));
    write_bytes(out, owner.key);
    write_bytes(out, owner.namespace);
}

fn write_time(out: &mut Vec<u8>, operation: u8, domain: TimeDomain, timestamp: i64) {
    out.push(operation);
    out.push(match domain {
        TimeDomain::EventTime => 0,
        TimeDomain::ProcessingTime => 1,
    });
    out.extend_from_slice(&timestamp.to_le_bytes());
}

impl Operation<'_> {
    #[inline]
    pub(super) fn write(self, out: &mut Vec<u8>) {
        match self {
            Self::Put(owner, value) => {
                write_owner(out, PUT, owner);
                write_bytes(out, value);
            }
            Self::Append(owner, elements) => {
                write_owner(out, APPEND, owner);
                write_bytes(out, elements);
            }
            Self::Delete(owner) => write_owner(out, DELETE, owner),
            Self::PutPair(owner, map_key, value) => {
                write_owner(out, PUT_PAIR, owner);
                write_bytes(out, map_key);
                write_bytes(out, value);
            }
            Self::DeletePair(owner, map_key) => {
                write_owner(out, DELETE_PAIR, owner);
                write_bytes(out, map_key);
            }
            Self::NextPair(map_key, value) => {
                out.push(NEXT_PAIR);
                write_bytes(out, map_key);
                write_bytes(out, value);
            }
            Self::RegisterTimer(timer) => write_timer(out, REGISTER_TIMER, timer),
            Self::DeleteTimer(timer) => write_timer(out, DELETE_TIMER, timer),
            Self::DropTimers(domain, timestamp) => write_time(out, DROP_TIMERS, domain, timestamp),
        }
    }
}

fn write_timer(out: &mut Vec<u8>, operation: u8, timer: Timer<'_>) {
    write_time(out, operation, timer.domain, timer.timestamp);
    write_bytes(out, timer.key);
    write_bytes(out, timer.namespace);
}

/// Reads the operations of a section, from the front.
pub(super) struct Operations<'a> {
    rest: &'a [u8],
}

impl<'a> Operations<'a> {
    /// Of a whole section.
    pub(super) fn of(section: &'a [u8]) -> Result<Self, String> {
        match section.split_first() {
            None => Err("it has no version".to_owned()),
            Some((&VERSION, rest)) => Ok(Self { rest }),
            Some((version, _)) => Err(format!(
                "it has version {version}, this engine reads version {VERSION}: use the engine that wrote it"
            )),
        }
    }

    /// The next operation; none at the end.
    pub(super) fn next(&mut self) -> Result<Option<Operation<'a>>, String> {
        let Some((code, rest)) = self.rest.split_first() else { return Ok(None) };
        self.rest = rest;
        self.operation(*code).map(Some)
    }

    fn operation(&mut self, code: u8) -> Result<Operation<'a>, String> {
        Ok(match code {
            PUT => Operation::Put(self.owner()?, self.bytes()?),
            APPEND => Operation::Append(self.owner()?, self.bytes()?),
            DELETE => Operation::Delete(self.owner()?),
            PUT_PAIR => Operation::PutPair(self.owner()?, self.bytes()?, self.bytes()?),
            DELETE_PAIR => Operation::DeletePair(self.owner()?, self.bytes()?),
            NEXT_PAIR => Operation::NextPair(self.bytes()?, self.bytes()?),
            REGISTER_TIMER => Operation::RegisterTimer(self.timer()?),
            DELETE_TIMER => Operation::DeleteTimer(self.timer()?),
            DROP_TIMERS => {
                let (domain, timestamp) = self.time()?;
                Operation::DropTimers(domain, timestamp)
            }
            code => return Err(format!("there is no operation {code}")),
        })
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], String> {
        let (array, rest) = self.rest.split_first_chunk().ok_or_else(ends_too_early)?;
        self.rest = rest;
        Ok(*array)
    }

    fn number(&mut self) -> Result<u32, String> {
        let mut number = 0;
        for index in 0..NUMBER_BYTES_MAX {
            let [byte] = self.array()?;
            number |= u64::from(byte & 0x7f) << (7 * index);
            if byte < 0x80 {
                return u32::try_from(number).map_err(|_| format!("the number {number} is too large"));
            }
        }
        Err("a number has too many bytes".to_owned())
    }

    fn bytes(&mut self) -> Result<&'a [u8], String> {
        let length = self.number()?;
        let (bytes, rest) = self.rest.split_at_checked(length as usize).ok_or_else(ends_too_early)?;
        self.rest = rest;
        Ok(bytes)
    }

    fn owner(&mut self) -> Result<Owner<'a>, String> {
        Ok(Owner { state: self.number()? as usize, key: self.bytes()?, namespace: self.bytes()? })
    }

    fn time(&mut self) -> Result<(TimeDomain, i64), String> {
        let [domain] = self.array()?;
        let domain = match domain {
            0 => TimeDomain::EventTime,
            1 => TimeDomain::ProcessingTime,
            _ => return Err(format!("there is no time domain {domain}")),
        };
        Ok((domain, i64::from_le_bytes(self.array()?)))
    }

    fn timer(&mut self) -> Result<Timer<'a>, String> {
        let (domain, timestamp) = self.time()?;
        Ok(Timer { domain, timestamp, key: self.bytes()?, namespace: self.bytes()? })
    }
}

fn ends_too_early() -> String {
    "it ends in the middle of an operation".to_owned()
}
