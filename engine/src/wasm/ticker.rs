//! The epoch ticker: one thread that ends the epoch of running guests every 5 ms.
//!
//! It ticks only while a guest runs (and for a moment after), so that idle jobs
//! cost nothing. Segments announce each call with [`Ticker::enter`].
//!
//! Invariant: while the count of running calls is above zero the thread is
//! awake. A caller first counts itself and then looks whether the thread is
//! parked; the thread first says that it parks and then looks at the count.

use std::{
    sync::{
        Arc, Condvar, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

/// Time between two ticks.
pub(crate) const TICK: Duration = Duration::from_millis(5);
/// Ticks without a running call after which the thread parks: while calls come
/// often, none of them has to wake it.
const IDLE_TICKS_MAX: u32 = 20;

/// Owner of the thread, which ends when this is dropped.
pub(crate) struct Ticker {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    running: AtomicUsize,
    parked: AtomicBool,
    shutdown: Mutex<bool>,
    wake: Condvar,
}

/// A running call; the drop ends it.
pub(crate) struct RunningCall<'a>(&'a Shared);

impl Ticker {
    /// Starts the thread, which calls `tick`.
    pub(crate) fn start(tick: impl Fn() + Send + 'static) -> std::io::Result<Self> {
        let shared = Arc::new(Shared {
            running: AtomicUsize::new(0),
            parked: AtomicBool::new(false),
            shutdown: Mutex::new(false),
            wake: Condvar::new(),
        });
        let of_thread = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("epoch-ticker".into()).spawn(move || of_thread.run(tick))?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Announces a call; ticks come until the returned guard is dropped.
    #[inline]
    pub(crate) fn enter(&self) -> RunningCall<'_> {
        self.shared.running.fetch_add(1, Ordering::SeqCst);
        if self.shared.parked.load(Ordering::SeqCst) {
            self.shared.unpark();
        }
        RunningCall(&self.shared)
    }

    #[cfg(test)]
    fn is_parked(&self) -> bool {
        self.shared.parked.load(Ordering::SeqCst)
    }
}

impl Drop for Ticker {
    fn drop(&mut self) {
        *self.shared.shutdown.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.shared.wake.notify_all();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the epoch ticker had panicked");
        }
    }
}

impl Drop for RunningCall<'_> {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Shared {
    fn run(&self, tick: impl Fn()) {
        let mut idle_ticks = 0;
        let mut shutdown = self.shutdown.lock().unwrap_or_else(PoisonError::into_inner);
        while !*shutdown {
            if idle_ticks >= IDLE_TICKS_MAX {
                self.parked.store(true, Ordering::SeqCst);
                if self.running.load(Ordering::SeqCst) == 0 {
                    shutdown = self
                        .wake
                        .wait_while(shutdown, |shutdown| !*shutdown && self.parked.load(Ordering::SeqCst))
                        .unwrap_or_else(PoisonError::into_inner);
                }
                self.parked.store(false, Ordering::SeqCst);
                idle_ticks = 0;
                continue;
            }
            shutdown = self.wake.wait_timeout(shutdown, TICK).unwrap_or_else(PoisonError::into_inner).0;
            tick();
            idle_ticks = if self.running.load(Ordering::SeqCst) == 0 { idle_ticks + 1 } else { 0 };
        }
    }

    #[cold]
    fn unpark(&self) {
        // The lock makes sure that the thread is not between its look at `parked` and its wait.
        let shutdown = self.shutdown.lock().unwrap_or_else(PoisonError::into_inner);
        self.parked.store(false, Ordering::SeqCst);
        drop(shutdown);
        self.wake.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ticker() -> (Ticker, crossbeam_channel::Receiver<()>) {
        let (sender, receiver) = crossbeam_channel::bounded(1);
        let ticker = Ticker::start(move || match sender.try_send(()) {
            Ok(()) | Err(crossbeam_channel::TrySendError::Full(())) => {}
            Err(crossbeam_channel::TrySendError::Disconnected(())) => {}
        })
        .unwrap();
        (ticker, receiver)
    }

    fn wait_until_parked(ticker: &Ticker) {
        while !ticker.is_parked() {
            std::thread::yield_now();
        }
    }

    #[test]
    fn ticks_while_a_call_runs_and_parks_afterwards() {
        let (ticker, ticks) = ticker();
        let call = ticker.enter();
        for _ in 0..3 * IDLE_TICKS_MAX {
            ticks.recv_timeout(Duration::from_secs(10)).unwrap();
        }
        assert!(!ticker.is_parked());
        drop(call);
        wait_until_parked(&ticker);
    }

    #[test]
    fn a_call_wakes_a_parked_ticker() {
        let (ticker, ticks) = ticker();
        wait_until_parked(&ticker);
        while ticks.try_recv().is_ok() {}
        let _call = ticker.enter();
        ticks.recv_timeout(Duration::from_secs(10)).unwrap();
    }

    #[test]
    fn a_parked_ticker_ends_when_dropped() {
        let (ticker, ticks) = ticker();
        wait_until_parked(&ticker);
        drop(ticker);
        // The sender lived in the thread.
        while ticks.try_recv() != Err(crossbeam_channel::TryRecvError::Disconnected) {}
    }
}
