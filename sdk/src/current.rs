//! What is running: the mark that the host reads after a trap, and the row that
//! user code refused.
//!
//! Written by operators and collectors, read by the segment after each row. An
//! instance has one thread, so on the component's target these are plain statics.

use std::{
    cell::{Cell, RefCell},
    sync::atomic::{AtomicU32, Ordering::Relaxed},
};

use crate::{error::Error, host};

/// Stands for no row of a batch.
pub(crate) const NO_ROW: u32 = u32::MAX;

/// Id of the running node (0: none), zero-based row of the batch ([`NO_ROW`]: none); see `mark-address` in `wit/plugin.wit`.
#[cfg(target_arch = "wasm32")]
static MARK: [AtomicU32; 2] = [AtomicU32::new(0), AtomicU32::new(NO_ROW)];

#[cfg(not(target_arch = "wasm32"))]
thread_local! {
    // Tests run jobs on many threads of one process.
    static MARK: [AtomicU32; 2] = const { [AtomicU32::new(0), AtomicU32::new(NO_ROW)] };
}

#[cfg(target_arch = "wasm32")]
#[inline(always)]
fn mark<R>(f: impl FnOnce(&[AtomicU32; 2]) -> R) -> R {
    f(&MARK)
}

#[cfg(not(target_arch = "wasm32"))]
#[inline(always)]
fn mark<R>(f: impl FnOnce(&[AtomicU32; 2]) -> R) -> R {
    MARK.with(f)
}

thread_local! {
    /// True if a row was rejected or the attempt failed: the row's loop must look.
    static INTERRUPTED: Cell<bool> = const { Cell::new(false) };
    static FAILED: Cell<bool> = const { Cell::new(false) };
    /// Bytes of rows handed to the engine.
    static EMITTED: Cell<u64> = const { Cell::new(0) };
    static REJECTION: RefCell<Option<Rejection>> = const { RefCell::new(None) };
}

struct Rejection {
    node: u32,
    message: String,
}

/// Address of the mark in the component's memory.
#[cfg(target_arch = "wasm32")]
pub(crate) fn mark_address() -> u32 {
    u32::try_from(MARK.as_ptr().addr()).expect("addresses of this target have 32 bits")
}

/// The mark has no address outside of a component.
#[cfg(not(target_arch = "wasm32"))]
pub(crate) fn mark_address() -> u32 {
    0
}

/// Marks the node that is running from here on.
#[inline(always)]
pub(crate) fn enter(node: u32) {
    mark(|mark| mark[0].store(node, Relaxed));
}

/// The node that is running.
#[inline]
pub(crate) fn node() -> u32 {
    mark(|mark| mark[0].load(Relaxed))
}

/// Marks the row that is being processed from here on.
#[inline(always)]
pub(crate) fn enter_row(row: u32) {
    mark(|mark| mark[1].store(row, Relaxed));
}

/// The row of the batch that is being processed, or the step of a call that fires timers.
#[inline]
pub(crate) fn row() -> u32 {
    mark(|mark| mark[1].load(Relaxed))
}

/// Marks that no operator runs.
pub(crate) fn leave() {
    enter(0);
    enter_row(NO_ROW);
}

/// Rejects the row that is being processed. Its loop learns of it by
/// [`interrupted`] and settles it. The first error of a row counts.
#[cold]
pub(crate) fn reject(node: u32, error: &Error) {
    if FAILED.get() {
        return;
    }
    INTERRUPTED.set(true);
    REJECTION.with_borrow_mut(|rejection| {
        rejection.get_or_insert_with(|| Rejection { node, message: error.to_string() });
    });
}

/// Fails the current call.
#[cold]
pub(crate) fn fail(node: u32, message: &str) {
    if !FAILED.replace(true) {
        INTERRUPTED.set(true);
        host::fail(node, message);
    }
}

/// True if a row was rejected or the call failed.
#[inline(always)]
pub(crate) fn interrupted() -> bool {
    INTERRUPTED.get()
}

/// True if the call failed: nothing more needs to be done in it.
#[inline]
pub(crate) fn failed() -> bool {
    FAILED.get()
}

/// Asks the host what becomes of the rejected row, if one was; returns false if
/// the call has failed. `row` is its number in the batch and its payload, none outside of one.
#[cold]
pub(crate) fn settle(row: Option<(u32, &[u8])>) -> bool {
    if let Some(Rejection { node, message }) = REJECTION.take() {
        let payload = row.map_or(&[][..], |(_, payload)| payload);
        match host::reject_row(node, row.map(|(number, _)| number), &message, payload) {
            host::Verdict::Skip => {}
            host::Verdict::Fail => FAILED.set(true),
        }
    }
    INTERRUPTED.set(FAILED.get());
    !FAILED.get()
}

/// Counts bytes of rows that were handed to the engine.
pub(crate) fn add_emitted_bytes(bytes: usize) {
    EMITTED.set(EMITTED.get() + bytes as u64);
}

/// Bytes of rows handed to the engine so far.
pub(crate) fn emitted_bytes() -> u64 {
    EMITTED.get()
}

/// Forgets what an earlier instance of this thread left behind.
pub(crate) fn reset() {
    leave();
    INTERRUPTED.set(false);
    FAILED.set(false);
    REJECTION.set(None);
}
