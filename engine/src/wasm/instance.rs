//! One instance of a plugin: a store, its exports, and what a failed call leaves.
//!
//! Invariants: each call gets its epoch deadline and budgets anew; after a
//! failure the store is taken apart, so that it cannot be entered again.

use std::sync::Arc;

use wasmtime::{
    Store, WasmCoreDump,
    component::{
        Component, ComponentExportIndex, ComponentNamedList, Instance as WasmInstance, InstancePre, Lift, Lower,
        TypedFunc,
    },
};

use super::{
    EntryPoint, GuestError, GuestFailure, SandboxLimits,
    contract::{
        self, WitBatchKind, WitOperatorContext, WitSourceStatus, WitStatus, WitStreamGraph, WitTakeStatus,
        WitTimeDomain,
    },
    guest_error::{CallEvidence, MESSAGE_BYTES_MAX, backtrace, classify, cut, escape, with_hint},
    host::{Host, Reported},
    limits::COMPONENT_HANDLES_MAX,
    ticker::Ticker,
};
use crate::graph::stream_graph::StreamGraph;

/// What messages and names may take of the host's memory beyond the emitted rows.
const HOSTCALL_BYTES_EXTRA: usize = 1 << 20;
/// What a graph or a description may take of the host's memory.
const PLAN_BYTES_MAX: usize = 16 << 20;
/// Bytes kept of a description.
const DESCRIPTION_BYTES_MAX: usize = 64 << 10;
/// Bytes of the mark: node and row.
const MARK_BYTES: usize = 8;

/// Where the exports stand in a component; looked up once.
#[derive(Clone, Copy)]
pub(crate) struct ExportIndices {
    plan: ComponentExportIndex,
    describe: ComponentExportIndex,
    open: ComponentExportIndex,
    process_batch: ComponentExportIndex,
    poll_source: ComponentExportIndex,
    process_watermark: ComponentExportIndex,
    process_watermark_status: ComponentExportIndex,
    fire_timers: ComponentExportIndex,
    take_state: ComponentExportIndex,
    begin_split: ComponentExportIndex,
    end_split: ComponentExportIndex,
    advance_processing_time: ComponentExportIndex,
    snapshot: ComponentExportIndex,
    notify_checkpoint_complete: ComponentExportIndex,
    notify_checkpoint_aborted: ComponentExportIndex,
    end_input: ComponentExportIndex,
    close: ComponentExportIndex,
    mark_address: ComponentExportIndex,
}

impl ExportIndices {
    /// None if one is missing, which admission rules out.
    pub(crate) fn find(component: &Component) -> Option<Self> {
        let program = component.get_export_index(None, contract::PROGRAM)?;
        let chain = component.get_export_index(None, contract::OPERATOR_CHAIN)?;
        let of_chain = |name| component.get_export_index(Some(&chain), name);
        Some(Self {
            plan: component.get_export_index(Some(&program), "plan")?,
            describe: component.get_export_index(Some(&program), "describe")?,
            open: of_chain("open")?,
            process_batch: of_chain("process-batch")?,
            poll_source: of_chain("poll-source")?,
            process_watermark: of_chain("process-watermark")?,
            process_watermark_status: of_chain("process-watermark-status")?,
            fire_timers: of_chain("fire-timers")?,
            take_state: of_chain("take-state")?,
            begin_split: of_chain("begin-split")?,
            end_split: of_chain("end-split")?,
            advance_processing_time: of_chain("advance-processing-time")?,
            snapshot: of_chain("snapshot")?,
            notify_checkpoint_complete: of_chain("notify-checkpoint-complete")?,
            notify_checkpoint_aborted: of_chain("notify-checkpoint-aborted")?,
            end_input: of_chain("end-input")?,
            close: of_chain("close")?,
            mark_address: of_chain("mark-address")?,
        })
    }
}

/// An export that takes a slice keeps the longest lifetime; it is called with shorter ones.
type ProcessBatch = TypedFunc<(u32, WitBatchKind, u32, &'static [u8]), (WitStatus,)>;
type FireTimers = TypedFunc<(WitTimeDomain, i64, u32, &'static [u8]), (WitStatus,)>;
type TakeState = TypedFunc<(u32, u32, &'static [u8]), (WitTakeStatus,)>;

/// The exports that a segment calls again and again.
#[derive(Clone, Copy)]
pub(crate) struct Exports {
    pub(crate) process_batch: ProcessBatch,
    pub(crate) poll_source: TypedFunc<(u32,), (WitSourceStatus,)>,
    pub(crate) process_watermark: TypedFunc<(i64,), (WitStatus,)>,
    pub(crate) process_watermark_status: TypedFunc<(bool,), (WitStatus,)>,
    pub(crate) fire_timers: FireTimers,
    pub(crate) take_state: TakeState,
    pub(crate) begin_split: TypedFunc<(u32,), (WitStatus,)>,
    pub(crate) end_split: TypedFunc<(u32,), (WitStatus,)>,
    pub(crate) advance_processing_time: TypedFunc<(i64,), (WitStatus,)>,
    pub(crate) snapshot: TypedFunc<(u64,), (WitStatus,)>,
    pub(crate) notify_checkpoint_complete: TypedFunc<(u64,), (WitStatus,)>,
    pub(crate) notify_checkpoint_aborted: TypedFunc<(u64,), (WitStatus,)>,
    pub(crate) end_input: TypedFunc<(u32,), (WitStatus,)>,
    pub(crate) close: TypedFunc<(), (WitStatus,)>,
}

/// What an instance is made of; shared by all instances of a plugin.
pub(crate) struct InstanceTemplate {
    pub(crate) plugin: String,
    pub(crate) pre: InstancePre<Host>,
    pub(crate) exports: ExportIndices,
    pub(crate) ticker: Arc<Ticker>,
}

/// An instance that did not fail.
pub(crate) struct Instance {
    store: Store<Host>,
    instance: WasmInstance,
    template: Arc<InstanceTemplate>,
    mark: Option<Mark>,
    /// What one call may hand over to the host.
    hostcall_bytes: usize,
}

/// Where the guest notes what runs, and which of its claims can be true.
struct Mark {
    address: usize,
    nodes: Vec<u32>,
}

impl Instance {
    /// Makes a fresh instance; runs its start functions.
    pub(crate) fn new(
        template: &Arc<InstanceTemplate>,
        limits: &SandboxLimits,
        mut host: Host,
    ) -> Result<Self, GuestError> {
        let template = Arc::clone(template);
        if let Err(trap) = host.begin_call(EntryPoint::Instantiate) {
            return Err(GuestError {
                failure: trap.failure,
                plugin: template.plugin.clone(),
                entry_point: EntryPoint::Instantiate,
                node: None,
                row: None,
                message: trap.message,
                backtrace: Vec::new(),
            });
        }
        // A list of state entries may be as long as the guest's memory.
        let hostcall_bytes = limits.emit_bytes_max.max(limits.memory_bytes_max).saturating_add(HOSTCALL_BYTES_EXTRA);
        let mut store = Store::new(template.pre.engine(), host);
        store.set_hostcall_fuel(hostcall_bytes);
        store.limiter(|host| &mut host.limiter);
        store.set_max_component_handles(COMPONENT_HANDLES_MAX);
        store.epoch_deadline_callback(|mut store| store.data_mut().on_tick());
        store.set_epoch_deadline(1);
        let instantiated = {
            let _running = template.ticker.enter();
            template.pre.instantiate(&mut store)
        };
        match instantiated {
            Ok(instance) => Ok(Self { store, instance, template, mark: None, hostcall_bytes }),
            Err(error) => Err(failed_call(&template, &mut store, None, EntryPoint::Instantiate, None, &error)),
        }
    }

    /// Calls `program.plan`.
    pub(crate) fn plan(&mut self, args: &[String]) -> Result<StreamGraph, GuestError> {
        type Plan = TypedFunc<(&'static [String],), (Result<WitStreamGraph, String>,)>;
        let plan: Plan = self.export(&self.template.exports.plan.clone());
        self.store.set_hostcall_fuel(PLAN_BYTES_MAX);
        let (planned,) = self.call(EntryPoint::Plan, None, plan, (args,))?;
        match planned {
            Ok(graph) => Ok(graph.into()),
            Err(message) => Err(self.user_error(EntryPoint::Plan, None, escape(&message, MESSAGE_BYTES_MAX))),
        }
    }

    /// Calls `program.describe`.
    pub(crate) fn describe(&mut self) -> Result<String, GuestError> {
        let describe: TypedFunc<(), (String,)> = self.export(&self.template.exports.describe.clone());
        self.store.set_hostcall_fuel(PLAN_BYTES_MAX);
        let (text,) = self.call(EntryPoint::Describe, None, describe, ())?;
        let lines = text.lines().map(|line| escape(line, DESCRIPTION_BYTES_MAX)).collect::<Vec<_>>().join("\n");
        Ok(cut(&lines, DESCRIPTION_BYTES_MAX).to_owned())
    }

    /// Calls `operator-chain.open`, after it learnt where the guest's mark is.
    pub(crate) fn open(&mut self, context: &WitOperatorContext, nodes: &[u32]) -> Result<(), GuestError> {
        self.store.set_hostcall_fuel(self.hostcall_bytes);
        let mark_address: TypedFunc<(), (u32,)> = self.export(&self.template.exports.mark_address.clone());
        let (address,) = self.call(EntryPoint::Open, None, mark_address, ())?;
        self.mark = usize::try_from(address).ok().map(|address| Mark { address, nodes: nodes.to_owned() });
        let open: TypedFunc<(&'static WitOperatorContext,), (WitStatus,)> =
            self.export(&self.template.exports.open.clone());
        let (status,) = self.call(EntryPoint::Open, None, open, (context,))?;
        self.check_status(EntryPoint::Open, status)
    }

    /// Exports for the calls that follow `open`.
    pub(crate) fn exports(&mut self) -> Exports {
        let indices = self.template.exports;
        Exports {
            process_batch: self.export(&indices.process_batch),
            poll_source: self.export(&indices.poll_source),
            process_watermark: self.export(&indices.process_watermark),
            process_watermark_status: self.export(&indices.process_watermark_status),
            fire_timers: self.export(&indices.fire_timers),
            take_state: self.export(&indices.take_state),
            begin_split: self.export(&indices.begin_split),
            end_split: self.export(&indices.end_split),
            advance_processing_time: self.export(&indices.advance_processing_time),
            snapshot: self.export(&indices.snapshot),
            notify_checkpoint_complete: self.export(&indices.notify_checkpoint_complete),
            notify_checkpoint_aborted: self.export(&indices.notify_checkpoint_aborted),
            end_input: self.export(&indices.end_input),
            close: self.export(&indices.close),
        }
    }

    /// Calls an export under the budget of `entry_point`. `rows` is the number of
    /// rows handed over, if there are any.
    #[inline]
    pub(crate) fn call<Params, Return>(
        &mut self,
        entry_point: EntryPoint,
        rows: Option<u32>,
        function: TypedFunc<Params, Return>,
        params: Params,
    ) -> Result<Return, GuestError>
    where
        Params: ComponentNamedList + Lower,
        Return: ComponentNamedList + Lift,
    {
        let called = match self.store.data_mut().begin_call(entry_point) {
            Err(trap) => Err(trap.into()),
            Ok(()) => {
                self.store.set_epoch_deadline(1);
                let _running = self.template.ticker.enter();
                function.call(&mut self.store, params)
            }
        };
        called.map_err(|error| {
            failed_call(&self.template, &mut self.store, self.mark.as_ref(), entry_point, rows, &error)
        })
    }

    /// Turns "failed", or an error that was reported, into a failure.
    #[inline]
    pub(crate) fn check_status(&mut self, entry_point: EntryPoint, status: WitStatus) -> Result<(), GuestError> {
        let Reported { panic: _, failure } = self.store.data_mut().take_reported();
        match (status, failure) {
            (WitStatus::Ok, None) => Ok(()),
            (_, Some((node, row, message))) => {
                Err(GuestError { row, ..self.user_error(entry_point, Some(node), message) })
            }
            (WitStatus::Failed, None) => {
                Err(self.user_error(entry_point, None, "the plugin failed without saying why".to_owned()))
            }
        }
    }

    pub(crate) fn error(&self, failure: GuestFailure, entry_point: EntryPoint, message: String) -> GuestError {
        GuestError {
            failure,
            plugin: self.template.plugin.clone(),
            entry_point,
            node: None,
            row: None,
            message,
            backtrace: Vec::new(),
        }
    }

    pub(crate) fn host(&self) -> &Host {
        self.store.data()
    }

    pub(crate) fn host_mut(&mut self) -> &mut Host {
        self.store.data_mut()
    }

    /// Drops the store with all memory of the guest.
    pub(crate) fn into_host(self) -> Host {
        self.store.into_data()
    }

    fn user_error(&self, entry_point: EntryPoint, node: Option<u32>, message: String) -> GuestError {
        GuestError { node, ..self.error(GuestFailure::UserError, entry_point, with_hint(message)) }
    }

    fn export<Params, Return>(&mut self, index: &ComponentExportIndex) -> TypedFunc<Params, Return>
    where
        Params: ComponentNamedList + Lower,
        Return: ComponentNamedList + Lift,
    {
        self.instance.get_typed_func(&mut self.store, index).expect("admission compared the exports with the contract")
    }
}

/// Gathers what a failed call left in the store, which is not entered any more.
#[cold]
fn failed_call(
    template: &InstanceTemplate,
    store: &mut Store<Host>,
    mark: Option<&Mark>,
    entry_point: EntryPoint,
    rows: Option<u32>,
    error: &wasmtime::Error,
) -> GuestError {
    let (node, row) = match (mark, error.downcast_ref::<WasmCoreDump>()) {
        (Some(mark), Some(dump)) => read_mark(mark, dump, store, rows),
        (None, _) | (_, None) => (None, None),
    };
    let Reported { panic, failure: _ } = store.data_mut().take_reported();
    let refused = store.data().limiter.refused();
    let (failure, message) = classify(&CallEvidence { error, panic: panic.as_deref(), refused });
    GuestError {
        failure,
        plugin: template.plugin.clone(),
        entry_point,
        node,
        row,
        message,
        backtrace: backtrace(error),
    }
}

/// Reads the mark; a value that cannot be true counts as unknown.
fn read_mark(mark: &Mark, dump: &WasmCoreDump, store: &Store<Host>, rows: Option<u32>) -> (Option<u32>, Option<u32>) {
    let end = mark.address.saturating_add(MARK_BYTES);
    let Some(bytes) = dump.memories().iter().find_map(|memory| memory.data(store).get(mark.address..end)) else {
        return (None, None);
    };
    let [n0, n1, n2, n3, r0, r1, r2, r3] = *bytes else {
        return (None, None);
    };
    let node = u32::from_le_bytes([n0, n1, n2, n3]);
    let row = u32::from_le_bytes([r0, r1, r2, r3]);
    (Some(node).filter(|node| mark.nodes.contains(node)), Some(row).filter(|row| rows.is_some_and(|rows| *row < rows)))
}
