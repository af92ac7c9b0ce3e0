//! What a plugin may call: the imports, and the state of one instance behind them.
//!
//! The hot imports take their lists as views into guest memory. Nothing here
//! waits. Every check that fails raises a [`HostTrap`], which ends the call.

use std::{any::Any, collections::BTreeMap, time::Duration};

use rustix::time::{ClockId, clock_gettime};
use wasmtime::{
    StoreContextMut, UpdateDeadline,
    component::{Linker, LinkerInstance, WasmList, WasmStr},
};

use super::{
    CancelFlag, EmitTarget, EntryPoint, GuestFailure, LogLevel, SandboxLimits,
    contract::{IMPORTS, WitLevel, WitMetricKind, WitVerdict},
    guest_error::{HostTrap, MESSAGE_BYTES_MAX, cut, escape},
    limits::Limiter,
    log_rate::LogRate,
    metrics::{MetricRegistry, NoSuchMetric},
};
use crate::{
    base::{
        clock::{Clock, Timestamp},
        stream_element::WatermarkStatus,
    },
    connector::Verdict,
    state::{KeyedState, StateDescriptor, StateError, StateFailure},
};

/// An [`EmitTarget`] of a type that is forgotten here and known again by its segment.
pub(crate) trait AnyTarget: EmitTarget {
    fn as_any(&self) -> &dyn Any;
    fn as_any_mut(&mut self) -> &mut dyn Any;
}

impl<T: EmitTarget> AnyTarget for T {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }
}

/// What an element of an operator state costs beside its bytes, about.
const LIST_ELEMENT_BYTES: usize = 48;
const TARGET_IS_BACK: &str = "the target is put back by the import that took it";

/// State of one instance on the host's side; lives in its store.
pub(crate) struct Host {
    pub(crate) limiter: Limiter,
    pub(crate) metrics: MetricRegistry,
    pub(crate) dropped_log_lines: u64,
    /// Taken out while it reads guest memory, for which the whole store is borrowed.
    target: Option<Box<dyn AnyTarget>>,
    limits: SandboxLimits,
    cancel: CancelFlag,
    clock: Clock,
    /// Processing time of the running call, if it asked for it.
    now: Option<Timestamp>,
    /// There once the operators are opened; taken out while it reads guest memory.
    state: Option<Box<KeyedState>>,
    /// Elements of the operator states, by place among all states of the segment.
    lists: BTreeMap<usize, Vec<Vec<u8>>>,
    /// What messages call each of them.
    list_names: BTreeMap<usize, String>,
    log_rate: LogRate,
    outputs: u32,
    entry_point: EntryPoint,
    cpu_budget: Duration,
    /// CPU time of the thread at the first tick of the call.
    cpu_base: Option<Duration>,
    emitted_bytes: usize,
    emitted_rows: u64,
    reported: Reported,
}

/// What the guest reported during a call.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reported {
    /// Message and place of a panic.
    pub(crate) panic: Option<String>,
    /// Node, row of the batch and message of an error for which the attempt fails.
    pub(crate) failure: Option<(u32, Option<u32>, String)>,
}

impl Host {
    pub(crate) fn new(
        limits: SandboxLimits,
        outputs: u32,
        cancel: CancelFlag,
        clock: Clock,
        target: Box<dyn AnyTarget>,
    ) -> Self {
        Self {
            limiter: Limiter::new(&limits),
            metrics: MetricRegistry::new(limits.metrics_max),
            target: Some(target),
            dropped_log_lines: 0,
            log_rate: LogRate::new(limits.log_bytes_per_second, clock.now()),
            limits,
            cancel,
            clock,
            now: None,
            state: None,
            lists: BTreeMap::new(),
            list_names: BTreeMap::new(),
            outputs,
            entry_point: EntryPoint::Instantiate,
            cpu_budget: Duration::ZERO,
            cpu_base: None,
            emitted_bytes: 0,
            emitted_rows: 0,
            reported: Reported::default(),
        }
    }

    pub(crate) fn target(&self) -> &dyn AnyTarget {
        self.target.as_deref().expect(TARGET_IS_BACK)
    }

    pub(crate) fn target_mut(&mut self) -> &mut dyn AnyTarget {
        self.target.as_deref_mut().expect(TARGET_IS_BACK)
    }

    /// Gives the operators their state, before they are opened.
    pub(crate) fn set_state(&mut self, state: KeyedState) {
        self.state = Some(Box::new(state));
    }

    /// Gives the operators their operator states, by place among all states: those that are
    /// missing here do not exist.
    pub(crate) fn set_lists(&mut self, lists: BTreeMap<usize, Vec<Vec<u8>>>, states: &[StateDescriptor]) {
        let name = |place: usize| format!("state {:?} of operator {:?}", states[place].name, states[place].operator);
        self.list_names = lists.keys().map(|place| (*place, name(*place))).collect();
        self.lists = lists;
    }

    /// Elements of the operator states, by place among all states of the segment.
    pub(crate) fn lists(&self) -> &BTreeMap<usize, Vec<Vec<u8>>> {
        &self.lists
    }

    /// State of the operators; none before they are opened.
    pub(crate) fn state(&self) -> Option<&KeyedState> {
        self.state.as_deref()
    }

    pub(crate) fn state_mut(&mut self) -> Option<&mut KeyedState> {
        self.state.as_deref_mut()
    }

    /// Gives the call a budget and output limits of its own.
    pub(crate) fn begin_call(&mut self, entry_point: EntryPoint) -> Result<(), HostTrap> {
        if self.cancel.is_canceled() {
            return Err(canceled());
        }
        self.entry_point = entry_point;
        self.cpu_budget = match entry_point {
            EntryPoint::Instantiate | EntryPoint::Plan | EntryPoint::Describe => self.limits.plan_cpu_time,
            EntryPoint::Open => self.limits.open_cpu_time,
            EntryPoint::ProcessBatch
            | EntryPoint::PollSource
            | EntryPoint::ProcessWatermark
            | EntryPoint::ProcessWatermarkStatus
            | EntryPoint::FireTimers
            | EntryPoint::TakeState
            | EntryPoint::BeginSplit
            | EntryPoint::EndSplit
            | EntryPoint::AdvanceProcessingTime
            | EntryPoint::Snapshot
            | EntryPoint::NotifyCheckpointComplete
            | EntryPoint::NotifyCheckpointAborted
            | EntryPoint::EndInput
            | EntryPoint::Close => self.limits.call_cpu_time,
        };
        self.cpu_base = None;
        self.now = None;
        self.emitted_bytes = 0;
        self.emitted_rows = 0;
        self.limiter.begin_call();
        // A panic that was reported in an earlier call did not end it, so it explains nothing.
        drop(self.take_reported());
        Ok(())
    }

    /// Takes what was reported since the last time.
    pub(crate) fn take_reported(&mut self) -> Reported {
        match &self.reported {
            Reported { panic: None, failure: None } => Reported::default(),
            Reported { .. } => std::mem::take(&mut self.reported),
        }
    }

    /// Decides at a tick whether the running call goes on.
    ///
    /// The budget counts the CPU time of this thread since the call's first tick:
    /// asking for it when the call begins would cost more than a short call.
    pub(crate) fn on_tick(&mut self) -> wasmtime::Result<UpdateDeadline> {
        if self.cancel.is_canceled() {
            return Err(canceled().into());
        }
        let now = thread_cpu_time();
        let base = *self.cpu_base.get_or_insert(now);
        if now.saturating_sub(base) < self.cpu_budget {
            return Ok(UpdateDeadline::Continue(1));
        }
        let option = match self.entry_point {
            EntryPoint::Instantiate | EntryPoint::Plan | EntryPoint::Describe => "sandbox.plan.cpu-time",
            EntryPoint::Open => "sandbox.open.cpu-time",
            EntryPoint::ProcessBatch
            | EntryPoint::PollSource
            | EntryPoint::ProcessWatermark
            | EntryPoint::ProcessWatermarkStatus
            | EntryPoint::FireTimers
            | EntryPoint::TakeState
            | EntryPoint::BeginSplit
            | EntryPoint::EndSplit
            | EntryPoint::AdvanceProcessingTime
            | EntryPoint::Snapshot
            | EntryPoint::NotifyCheckpointComplete
            | EntryPoint::NotifyCheckpointAborted
            | EntryPoint::EndInput
            | EntryPoint::Close => "sandbox.call.cpu-time",
        };
        let message = format!("used more than {:?} of CPU time ({option})", self.cpu_budget);
        Err(HostTrap::new(GuestFailure::CpuTime, message).into())
    }

    fn check_may_emit(&self) -> Result<(), HostTrap> {
        if self.entry_point.may_emit() {
            return Ok(());
        }
        let message = format!("nothing may be emitted in {}", self.entry_point.name());
        Err(HostTrap::new(GuestFailure::IllegalState, message))
    }

    fn check_may_use_state(&self, import: &str) -> Result<(), HostTrap> {
        if self.entry_point.may_use_state() {
            return Ok(());
        }
        let message = format!("{import} may not be called in {}", self.entry_point.name());
        Err(HostTrap::new(GuestFailure::IllegalState, message))
    }

    fn no_such_list(&self, state: u32) -> HostTrap {
        HostTrap::new(GuestFailure::IllegalState, format!("state {state} of the segment is not an operator state"))
    }

    /// The elements of an operator state as the guest takes them: u32 length and bytes each.
    fn list(&self, state: u32) -> Result<Vec<u8>, HostTrap> {
        self.check_may_use_state("operator-state.get")?;
        let elements = self.lists.get(&(state as usize)).ok_or_else(|| self.no_such_list(state))?;
        let mut encoded = Vec::with_capacity(elements.iter().map(|element| 4 + element.len()).sum());
        for element in elements {
            let length = u32::try_from(element.len()).expect("elements came from a guest's memory");
            encoded.extend_from_slice(&length.to_le_bytes());
            encoded.extend_from_slice(element);
        }
        Ok(encoded)
    }

    /// Takes the elements of an operator state.
    fn put_list(&mut self, state: u32, elements: Vec<Vec<u8>>) -> Result<(), HostTrap> {
        let place = state as usize;
        if !self.lists.contains_key(&place) {
            return Err(self.no_such_list(state));
        }
        let too_long = elements.iter().map(Vec::len).find(|bytes| self.limits.state_value_bytes_max < *bytes);
        if let Some(bytes) = too_long {
            let message = format!(
                "an element of {} has {bytes} bytes, the limit is {} (state.value.bytes-max)",
                self.list_names[&place], self.limits.state_value_bytes_max
            );
            return Err(HostTrap::new(GuestFailure::StateValueLimit, message));
        }
        self.lists.insert(place, elements);
        let listed: usize = self.lists.values().flatten().map(|element| LIST_ELEMENT_BYTES + element.len()).sum();
        let keyed = self.state.as_ref().map_or(0, |state| state.bytes());
        let bytes = keyed.saturating_add(listed as u64);
        if self.limits.state_bytes_max < bytes {
            let message = format!(
                "with {} the state of the operators takes {bytes} bytes, the limit is {} (state.bytes-max)",
                self.list_names[&place], self.limits.state_bytes_max
            );
            return Err(HostTrap::new(GuestFailure::StateLimit, message));
        }
        Ok(())
    }

    /// Processing time, the same throughout a call.
    pub(crate) fn now(&mut self) -> Timestamp {
        *self.now.get_or_insert_with(|| self.clock.now())
    }

    fn check_output(&self, output: u32) -> Result<(), HostTrap> {
        self.check_may_emit()?;
        if output < self.outputs {
            return Ok(());
        }
        let message = format!("there is no output {output}: the segment has {}", self.outputs);
        Err(HostTrap::new(GuestFailure::BadBatch, message))
    }

    /// Counts what is about to leave the guest against the limits of the call.
    fn charge(&mut self, rows: u64, bytes: usize) -> Result<(), HostTrap> {
        self.emitted_rows = self.emitted_rows.saturating_add(rows);
        self.emitted_bytes = self.emitted_bytes.saturating_add(bytes);
        let message = if self.emitted_rows > self.limits.emit_rows_max {
            format!("emitted more than {} rows in one call (sandbox.emit.rows-max)", self.limits.emit_rows_max)
        } else if self.emitted_bytes > self.limits.emit_bytes_max {
            format!("emitted more than {} bytes in one call (sandbox.emit.bytes-max)", self.limits.emit_bytes_max)
        } else {
            return Ok(());
        };
        Err(HostTrap::new(GuestFailure::OutputLimit, message))
    }

    /// No row can be longer than the batch, so only long batches are walked over.
    fn check_row_lengths(&self, rows: &[u8]) -> Result<(), HostTrap> {
        if rows.len() <= self.limits.row_bytes_max {
            return Ok(());
        }
        for row in engine_rows::row::Rows::new(rows) {
            let row = row.map_err(|error| HostTrap::new(GuestFailure::BadBatch, error.to_string()))?;
            if row.payload.len() > self.limits.row_bytes_max {
                let message = format!(
                    "emitted a row of {} bytes, the limit is {} (sandbox.row.bytes-max)",
                    row.payload.len(),
                    self.limits.row_bytes_max
                );
                return Err(HostTrap::new(GuestFailure::OutputLimit, message));
            }
        }
        Ok(())
    }

    fn log(&mut self, level: LogLevel, message: &str) {
        let line = escape(message, self.limits.log_line_bytes);
        if self.log_rate.admit(line.len(), self.clock.now()) {
            self.target_mut().log(level, &line);
        } else {
            self.dropped_log_lines += 1;
        }
    }
}

fn canceled() -> HostTrap {
    HostTrap::new(GuestFailure::Canceled, "the task was canceled")
}

fn thread_cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanos = u32::try_from(time.tv_nsec).unwrap_or(0);
    Duration::new(seconds, nanos)
}

/// All imports of the contract.
pub(crate) fn linker(engine: &wasmtime::Engine) -> wasmtime::Result<Linker<Host>> {
    let mut linker = Linker::new(engine);
    let [_, output, logging, metrics, keyed_state, operator_state, timers] = IMPORTS;
    add_output(&mut linker.instance(output)?)?;
    add_logging(&mut linker.instance(logging)?)?;
    add_metrics(&mut linker.instance(metrics)?)?;
    add_keyed_state(&mut linker.instance(keyed_state)?)?;
    add_operator_state(&mut linker.instance(operator_state)?)?;
    add_timers(&mut linker.instance(timers)?)?;
    Ok(linker)
}

type Caller<'a> = StoreContextMut<'a, Host>;

/// Lets the target look into guest memory.
#[inline]
fn with_target<R>(
    store: &mut Caller<'_>,
    look: impl FnOnce(&mut dyn AnyTarget, &Caller<'_>) -> wasmtime::Result<R>,
) -> wasmtime::Result<R> {
    let mut target = store.data_mut().target.take().expect(TARGET_IS_BACK);
    let result = look(&mut *target, store);
    store.data_mut().target = Some(target);
    result
}

fn add_output(instance: &mut LinkerInstance<'_, Host>) -> wasmtime::Result<()> {
    instance.func_wrap("emit", |mut store: Caller<'_>, (output, count, rows): (u32, u32, WasmList<u8>)| {
        let host = store.data_mut();
        host.check_output(output)?;
        host.charge(u64::from(count), rows.len())?;
        let emitted = with_target(&mut store, |target, store| {
            let rows = rows.as_le_slice(store);
            store.data().check_row_lengths(rows)?;
            Ok(target.emit(output, count, rows))
        })?;
        emitted.map_err(|error| HostTrap::new(GuestFailure::BadBatch, error.to_string()))?;
        Ok(())
    })?;
    instance.func_wrap("emit-watermark", |mut store: Caller<'_>, (output, timestamp): (u32, i64)| {
        let host = store.data_mut();
        host.check_output(output)?;
        host.charge(1, 0)?;
        host.target_mut().emit_watermark(output, Timestamp(timestamp));
        Ok(())
    })?;
    instance.func_wrap("emit-watermark-status", |mut store: Caller<'_>, (output, idle): (u32, bool)| {
        let host = store.data_mut();
        host.check_output(output)?;
        host.charge(1, 0)?;
        let status = if idle { WatermarkStatus::Idle } else { WatermarkStatus::Active };
        host.target_mut().emit_watermark_status(output, status);
        Ok(())
    })?;
    instance.func_wrap("report-split-time", |mut store: Caller<'_>, (split, timestamp): (u32, i64)| {
        let host = store.data_mut();
        host.check_may_emit()?;
        host.charge(1, 0)?;
        host.target_mut().report_split_time(split, Timestamp(timestamp));
        Ok(())
    })?;
    instance.func_wrap(
        "reject-row",
        |mut store: Caller<'_>, (node, row, message, payload): (u32, Option<u32>, WasmStr, WasmList<u8>)| {
            let host = store.data_mut();
            host.check_may_emit()?;
            host.charge(1, payload.len())?;
            let message = escape(&message.to_str(&store)?, MESSAGE_BYTES_MAX);
            let verdict = with_target(&mut store, |target, store| {
                Ok(target.reject_row(node, row, &message, payload.as_le_slice(store)))
            })?;
            if verdict == Verdict::Fail {
                store.data_mut().reported.failure.get_or_insert((node, row, message));
            }
            Ok((WitVerdict::from(verdict),))
        },
    )?;
    instance.func_wrap("fail", |mut store: Caller<'_>, (node, message): (u32, WasmStr)| {
        let message = escape(&message.to_str(&store)?, MESSAGE_BYTES_MAX);
        store.data_mut().reported.failure.get_or_insert((node, None, message));
        Ok(())
    })
}

fn add_logging(instance: &mut LinkerInstance<'_, Host>) -> wasmtime::Result<()> {
    instance.func_wrap("log", |mut store: Caller<'_>, (level, message): (WitLevel, WasmStr)| {
        let host = store.data();
        if LogLevel::from(level) < host.target().log_level() {
            return Ok(());
        }
        // The line is cut before it is copied out of guest memory, and one character late,
        // so that `escape` sees that something was cut.
        let bytes_max = host.limits.log_line_bytes.saturating_add(char::MAX.len_utf8());
        let message = cut(&message.to_str(&store)?, bytes_max).to_owned();
        store.data_mut().log(level.into(), &message);
        Ok(())
    })?;
    instance
        .func_wrap("max-level", |store: Caller<'_>, (): ()| Ok((WitLevel::from(store.data().target().log_level()),)))?;
    instance.func_wrap(
        "panicked",
        |mut store: Caller<'_>, (message, file, line, column): (WasmStr, WasmStr, u32, u32)| {
            let message = escape(&message.to_str(&store)?, MESSAGE_BYTES_MAX);
            let file = escape(&file.to_str(&store)?, MESSAGE_BYTES_MAX);
            store.data_mut().reported.panic.get_or_insert(format!("panicked at {file}:{line}:{column}: {message}"));
            Ok(())
        },
    )
}

fn add_metrics(instance: &mut LinkerInstance<'_, Host>) -> wasmtime::Result<()> {
    instance.func_wrap("register", |mut store: Caller<'_>, (node, kind, name): (u32, WitMetricKind, WasmStr)| {
        // A name above the limit is refused whole, so a cut one is as good as the rest.
        let name = cut(&name.to_str(&store)?, MESSAGE_BYTES_MAX).to_owned();
        Ok((store.data_mut().metrics.register(node, kind.into(), &name),))
    })?;
    instance.func_wrap("add", |mut store: Caller<'_>, (handle, delta): (u32, u64)| {
        known_metric(handle, store.data_mut().metrics.add(handle, delta))
    })?;
    instance.func_wrap("set", |mut store: Caller<'_>, (handle, value): (u32, f64)| {
        known_metric(handle, store.data_mut().metrics.set(handle, value))
    })?;
    instance.func_wrap("record", |mut store: Caller<'_>, (handle, value): (u32, f64)| {
        known_metric(handle, store.data_mut().metrics.record(handle, value))
    })
}

fn known_metric(handle: u32, result: Result<(), NoSuchMetric>) -> wasmtime::Result<()> {
    result.map_err(|NoSuchMetric| {
        HostTrap::new(GuestFailure::IllegalState, format!("no metric of this kind has the handle {handle}")).into()
    })
}

impl From<StateError> for HostTrap {
    fn from(StateError { failure, message }: StateError) -> Self {
        let failure = match failure {
            StateFailure::BadList => GuestFailure::BadBatch,
            StateFailure::NotKeyed => GuestFailure::IllegalState,
            StateFailure::WrongKeyGroup => GuestFailure::WrongKeyGroup,
            StateFailure::StateLimit => GuestFailure::StateLimit,
            StateFailure::ValueLimit => GuestFailure::StateValueLimit,
            StateFailure::TimerLimit => GuestFailure::TimerLimit,
            StateFailure::ResultLimit => GuestFailure::MemoryLimit,
            StateFailure::Storage => GuestFailure::StateStorage,
            StateFailure::Stopped => GuestFailure::Canceled,
        };
        Self::new(failure, message)
    }
}

/// Lets the state look into guest memory.
#[inline]
fn with_state<R>(
    store: &mut Caller<'_>,
    import: &str,
    call: impl FnOnce(&mut KeyedState, &Caller<'_>, Timestamp, &dyn Fn() -> bool) -> Result<R, StateError>,
) -> wasmtime::Result<R> {
    let host = store.data_mut();
    host.check_may_use_state(import)?;
    let now = host.now();
    let cancel = host.cancel.clone();
    let mut state = host.state.take().expect("the operators have a state once they are opened");
    let result = call(&mut state, store, now, &|| !cancel.is_canceled());
    store.data_mut().state = Some(state);
    result.map_err(|error| HostTrap::from(error).into())
}

type Bytes = WasmList<u8>;
type ManyOf = (u32, u32, Bytes);

fn add_keyed_state(instance: &mut LinkerInstance<'_, Host>) -> wasmtime::Result<()> {
    instance.func_wrap("get-many", |mut store: Caller<'_>, (state, count, entries): ManyOf| {
        let values = with_state(&mut store, "keyed-state.get-many", |keyed, store, now, go_on| {
            keyed.get_many(state, count, entries.as_le_slice(store), now, go_on)
        })?;
        Ok((values,))
    })?;
    instance.func_wrap("put-many", |mut store: Caller<'_>, (state, count, entries): ManyOf| {
        with_state(&mut store, "keyed-state.put-many", |keyed, store, now, go_on| {
            keyed.put_many(state, count, entries.as_le_slice(store), now, go_on)
        })
    })?;
    instance.func_wrap("append-many", |mut store: Caller<'_>, (state, count, entries): ManyOf| {
        with_state(&mut store, "keyed-state.append-many", |keyed, store, now, go_on| {
            keyed.append_many(state, count, entries.as_le_slice(store), now, go_on)
        })
    })?;
    instance.func_wrap("clear-many", |mut store: Caller<'_>, (state, count, entries): ManyOf| {
        with_state(&mut store, "keyed-state.clear-many", |keyed, store, _, go_on| {
            keyed.clear_many(state, count, entries.as_le_slice(store), go_on)
        })
    })?;
    instance.func_wrap(
        "load-maps",
        |mut store: Caller<'_>, (state, count, entries, max_bytes): (u32, u32, Bytes, u32)| {
            let maps = with_state(&mut store, "keyed-state.load-maps", |keyed, store, now, go_on| {
                keyed.load_maps(state, count, entries.as_le_slice(store), max_bytes, now, go_on)
            })?;
            Ok((maps,))
        },
    )?;
    instance.func_wrap(
        "scan-map",
        |mut store: Caller<'_>, (state, entry, after, max_bytes): (u32, Bytes, Option<Bytes>, u32)| {
            let pairs = with_state(&mut store, "keyed-state.scan-map", |keyed, store, now, _| {
                let after = after.as_ref().map(|after| after.as_le_slice(store));
                keyed.scan_map(state, entry.as_le_slice(store), after, max_bytes, now)
            })?;
            Ok((pairs,))
        },
    )
}

fn add_operator_state(instance: &mut LinkerInstance<'_, Host>) -> wasmtime::Result<()> {
    instance.func_wrap("get", |store: Caller<'_>, (state,): (u32,)| Ok((store.data().list(state)?,)))?;
    instance.func_wrap("put", |mut store: Caller<'_>, (state, elements): (u32, Bytes)| {
        let entry_point = store.data().entry_point;
        if entry_point != EntryPoint::Snapshot {
            let message = format!("operator-state.put may not be called in {}", entry_point.name());
            return Err(HostTrap::new(GuestFailure::IllegalState, message).into());
        }
        let elements = list_elements(elements.as_le_slice(&store))?;
        Ok(store.data_mut().put_list(state, elements)?)
    })
}

/// Takes a list apart: u32 length and bytes of each element.
fn list_elements(mut bytes: &[u8]) -> Result<Vec<Vec<u8>>, HostTrap> {
    let mut elements = Vec::new();
    while !bytes.is_empty() {
        let element = bytes.split_first_chunk::<4>().and_then(|(length, rest)| {
            let length = usize::try_from(u32::from_le_bytes(*length)).ok()?;
            rest.split_at_checked(length)
        });
        let Some((element, rest)) = element else {
            let message = format!("element {} of an operator state is longer than the list", elements.len());
            return Err(HostTrap::new(GuestFailure::BadBatch, message));
        };
        elements.push(element.to_vec());
        bytes = rest;
    }
    Ok(elements)
}

fn add_timers(instance: &mut LinkerInstance<'_, Host>) -> wasmtime::Result<()> {
    instance.func_wrap("register-many", |mut store: Caller<'_>, (count, timers): (u32, Bytes)| {
        with_state(&mut store, "timers.register-many", |keyed, store, _, go_on| {
            keyed.register_timers(count, timers.as_le_slice(store), go_on)
        })
    })?;
    instance.func_wrap("delete-many", |mut store: Caller<'_>, (count, timers): (u32, Bytes)| {
        with_state(&mut store, "timers.delete-many", |keyed, store, _, go_on| {
            keyed.delete_timers(count, timers.as_le_slice(store), go_on)
        })
    })?;
    instance.func_wrap("processing-time", |mut store: Caller<'_>, (): ()| {
        let host = store.data_mut();
        host.check_may_use_state("timers.processing-time")?;
        Ok((host.now().0,))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::config::Configuration;

    struct Nowhere;

    impl EmitTarget for Nowhere {
        fn emit(&mut self, _: u32, _: u32, _: &[u8]) -> Result<(), super::super::EmitError> {
            Ok(())
        }

        fn emit_watermark(&mut self, _: u32, _: Timestamp) {}

        fn emit_watermark_status(&mut self, _: u32, _: WatermarkStatus) {}

        fn reject_row(&mut self, _: u32, _: Option<u32>, _: &str, _: &[u8]) -> Verdict {
            Verdict::Skip
        }

        fn log(&mut self, _: LogLevel, _: &str) {}
    }

    fn host(call_cpu_time: Duration, cancel: CancelFlag) -> Host {
        let limits = SandboxLimits { call_cpu_time, ..SandboxLimits::from_configuration(&Configuration::default()) };
        let clock = Clock::new_virtual(Timestamp(0));
        Host::new(limits, 1, cancel, clock, Box::new(Nowhere))
    }

    /// Uses CPU time on the calling thread.
    fn burn(time: Duration) {
        let start = thread_cpu_time();
        while thread_cpu_time() - start < time {
            std::hint::spin_loop();
        }
    }

    fn failure(result: wasmtime::Result<UpdateDeadline>) -> Option<GuestFailure> {
        result.err().map(|error| error.downcast_ref::<HostTrap>().unwrap().failure)
    }

    #[test]
    fn the_budget_is_cpu_time_of_the_thread_and_not_time_that_passes() {
        let budget = Duration::from_millis(20);
        let mut host = host(budget, CancelFlag::default());
        host.begin_call(EntryPoint::ProcessBatch).unwrap();
        assert_eq!(failure(host.on_tick()), None);
        // The machine is busy with somebody else meanwhile.
        std::thread::spawn(move || burn(2 * budget)).join().unwrap();
        assert_eq!(failure(host.on_tick()), None);
        burn(budget);
        assert_eq!(failure(host.on_tick()), Some(GuestFailure::CpuTime));
    }

    #[test]
    fn each_call_has_a_budget_of_its_own() {
        let budget = Duration::from_millis(20);
        let mut host = host(budget, CancelFlag::default());
        for _ in 0..3 {
            host.begin_call(EntryPoint::ProcessBatch).unwrap();
            assert_eq!(failure(host.on_tick()), None);
            burn(budget * 3 / 4);
        }
    }

    #[test]
    fn a_cancel_ends_the_call_at_the_next_tick_and_all_later_ones_before_they_begin() {
        let cancel = CancelFlag::default();
        let mut host = host(Duration::MAX, cancel.clone());
        host.begin_call(EntryPoint::ProcessBatch).unwrap();
        cancel.cancel();
        assert_eq!(failure(host.on_tick()), Some(GuestFailure::Canceled));
        assert_eq!(host.begin_call(EntryPoint::Close).unwrap_err().failure, GuestFailure::Canceled);
    }
}
