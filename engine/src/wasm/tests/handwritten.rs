//! Attacks that no compiler emits: core modules in text form, with the type
//! section of the contract put on them.

use std::fmt::Write as _;

use super::*;
use crate::wasm::{AdmissionError, EntryPoint, GuestFailure, contract};

/// A module that implements the contract; each body can be replaced.
struct Handwritten {
    memory_pages: u32,
    imports: &'static str,
    /// Further fields of the module.
    fields: String,
    bodies: Vec<(&'static str, &'static str, &'static str)>,
}

const PLAN: &str = "engine:plugin/program@0.1.0#plan";
const PLAN_POST: &str = "cabi_post_engine:plugin/program@0.1.0#plan";
const PROCESS_BATCH: &str = "engine:plugin/operator-chain@0.1.0#process-batch";
const REALLOC: &str = "cabi_realloc";
const EMIT: &str = r#"(import "engine:plugin/output@0.1.0" "emit" (func $emit (param i32 i32 i32 i32)))"#;

/// Memory that stays zero: read as the result of `plan` it is an empty graph.
const ZEROS: &str = "(i32.const 1024)";

impl Handwritten {
    fn new() -> Self {
        let open = "(param i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i64 i64) (result i32)";
        Self {
            memory_pages: 2,
            imports: "",
            fields: String::new(),
            bodies: vec![
                (PLAN, "(param i32 i32) (result i32)", ZEROS),
                (PLAN_POST, "(param i32)", ""),
                ("engine:plugin/program@0.1.0#describe", "(result i32)", ZEROS),
                ("engine:plugin/operator-chain@0.1.0#open", open, "(i32.const 0)"),
                (PROCESS_BATCH, "(param i32 i32 i32 i32 i32) (result i32)", "(i32.const 0)"),
                ("engine:plugin/operator-chain@0.1.0#poll-source", "(param i32) (result i32)", "(i32.const 2)"),
                ("engine:plugin/operator-chain@0.1.0#process-watermark", "(param i64) (result i32)", "(i32.const 0)"),
                (
                    "engine:plugin/operator-chain@0.1.0#process-watermark-status",
                    "(param i32) (result i32)",
                    "(i32.const 0)",
                ),
                (
                    "engine:plugin/operator-chain@0.1.0#fire-timers",
                    "(param i32 i64 i32 i32 i32) (result i32)",
                    "(i32.const 0)",
                ),
                (
                    "engine:plugin/operator-chain@0.1.0#take-state",
                    "(param i32 i32 i32 i32) (result i32)",
                    "(i32.const 1)",
                ),
                ("engine:plugin/operator-chain@0.1.0#begin-split", "(param i32) (result i32)", "(i32.const 0)"),
                ("engine:plugin/operator-chain@0.1.0#end-split", "(param i32) (result i32)", "(i32.const 0)"),
                (
                    "engine:plugin/operator-chain@0.1.0#advance-processing-time",
                    "(param i64) (result i32)",
                    "(i32.const 0)",
                ),
                ("engine:plugin/operator-chain@0.1.0#snapshot", "(param i64) (result i32)", "(i32.const 0)"),
                (
                    "engine:plugin/operator-chain@0.1.0#notify-checkpoint-complete",
                    "(param i64) (result i32)",
                    "(i32.const 0)",
                ),
                (
                    "engine:plugin/operator-chain@0.1.0#notify-checkpoint-aborted",
                    "(param i64) (result i32)",
                    "(i32.const 0)",
                ),
                ("engine:plugin/operator-chain@0.1.0#end-input", "(param i32) (result i32)", "(i32.const 0)"),
                ("engine:plugin/operator-chain@0.1.0#close", "(result i32)", "(i32.const 0)"),
                ("engine:plugin/operator-chain@0.1.0#mark-address", "(result i32)", "(i32.const 2048)"),
                (REALLOC, "(param i32 i32 i32 i32) (result i32)", "(i32.const 4096)"),
            ],
        }
    }

    fn with(mut self, name: &str, body: &'static str) -> Self {
        self.bodies.iter_mut().find(|(export, ..)| *export == name).unwrap().2 = body;
        self
    }

    fn importing(mut self, imports: &'static str) -> Self {
        self.imports = imports;
        self
    }

    fn field(mut self, field: &str) -> Self {
        self.fields.push_str(field);
        self
    }

    /// The module with its type section.
    fn bytes(&self) -> Vec<u8> {
        let mut text =
            format!("(module {} (memory (export \"memory\") {}) {}", self.imports, self.memory_pages, self.fields);
        for (name, types, body) in &self.bodies {
            write!(text, "(func (export \"{name}\") {types} {body})").unwrap();
        }
        text.push(')');
        with_type_section(&text)
    }

    fn admit(&self) -> Result<AdmittedPlugin, AdmissionError> {
        runtime().admit(&self.bytes(), "test.wasm")
    }

    #[track_caller]
    fn compile(&self) -> Arc<CompiledPlugin> {
        runtime().compile(&self.admit().unwrap()).unwrap()
    }

    #[track_caller]
    fn open(&self, limits: &SandboxLimits) -> Result<Segment<Recorder>, GuestError> {
        open(&self.compile(), &[], limits, CancelFlag::default())
    }

    /// Checks how `process-batch` of one row ends.
    #[track_caller]
    fn check(&self, failure: GuestFailure, message: &str) {
        let error = self.open(&limits()).unwrap().process_batch(0, &batch(1)).unwrap_err();
        assert_eq!((error.failure, error.entry_point), (failure, EntryPoint::ProcessBatch), "{error}");
        assert!(error.message.contains(message), "{error}");
    }

    #[track_caller]
    fn check_plan(&self, failure: GuestFailure, entry_point: EntryPoint, message: &str) {
        let error = self.compile().plan(&args(&["a"]), &limits()).unwrap_err();
        assert_eq!((error.failure, error.entry_point), (failure, entry_point), "{error}");
        assert!(error.message.contains(message), "{error}");
    }
}

/// Puts the type section of the contract on a module in text form.
pub(super) fn with_type_section(text: &str) -> Vec<u8> {
    let mut resolve = wit_parser::Resolve::default();
    let package = resolve.push_source("plugin.wit", contract::WIT).unwrap();
    let world = resolve.select_world(&[package], Some(contract::WORLD)).unwrap();
    let mut bytes = wat::parse_str(text).unwrap();
    let encoding = wit_component::StringEncoding::UTF8;
    wit_component::embed_component_metadata(&mut bytes, &resolve, world, encoding).unwrap();
    bytes
}

/// A plugin that behaves and has a further field, in text form.
pub(super) fn plugin_with_field(field: &str) -> Vec<u8> {
    Handwritten::new().field(field).bytes()
}

#[test]
fn a_handwritten_plugin_runs() {
    let mut segment = Handwritten::new().open(&limits()).unwrap();
    segment.process_batch(0, &batch(1)).unwrap();
    segment.close().unwrap();
    assert_eq!(segment.memory_bytes(), 2 << 16);
}

#[test]
fn a_start_function_that_loops_is_stopped() {
    Handwritten::new().field("(func $spin (loop (br 0))) (start $spin)").check_plan(
        GuestFailure::CpuTime,
        EntryPoint::Instantiate,
        "sandbox.plan.cpu-time",
    );
}

#[test]
fn a_start_function_that_emits_is_refused() {
    let import = r#"(import "engine:plugin/output@0.1.0" "emit-watermark" (func $emit (param i32 i64)))"#;
    Handwritten::new()
        .importing(import)
        .field("(func $go (call $emit (i32.const 0) (i64.const 0))) (start $go)")
        .check_plan(GuestFailure::IllegalState, EntryPoint::Instantiate, "nothing may be emitted");
}

#[test]
fn recursion_that_needs_no_memory_overflows_the_stack() {
    Handwritten::new()
        .field("(func $down (param i32) (result i32) (i32.add (call $down (local.get 0)) (i32.const 1)))")
        .with(PROCESS_BATCH, "(call $down (local.get 0))")
        .check(GuestFailure::StackOverflow, "sandbox.stack.max");
    Handwritten::new()
        .field(
            "(type $step (func (param i32) (result i32))) (table funcref (elem $there $back))
             (func $there (param i32) (result i32) (i32.add (call_indirect (type $step) (local.get 0) (i32.const 1)) (i32.const 1)))
             (func $back (param i32) (result i32) (i32.add (call_indirect (type $step) (local.get 0) (i32.const 0)) (i32.const 1)))",
        )
        .with(PROCESS_BATCH, "(call $there (local.get 0))")
        .check(GuestFailure::StackOverflow, "sandbox.stack.max");
}

#[test]
fn loops_in_allocator_and_post_return_are_stopped() {
    Handwritten::new().with(REALLOC, "(loop (br 0)) (unreachable)").check_plan(
        GuestFailure::CpuTime,
        EntryPoint::Plan,
        "",
    );
    Handwritten::new().with(PLAN_POST, "(loop (br 0))").check_plan(GuestFailure::CpuTime, EntryPoint::Plan, "");
}

#[test]
fn imports_cannot_be_called_while_the_host_moves_values() {
    let call = "(call $emit (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0)) (i32.const 4096)";
    Handwritten::new().importing(EMIT).with(REALLOC, call).check_plan(
        GuestFailure::IllegalState,
        EntryPoint::Plan,
        "cannot leave component instance",
    );
    let call = "(call $emit (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0))";
    Handwritten::new().importing(EMIT).with(PLAN_POST, call).check_plan(
        GuestFailure::IllegalState,
        EntryPoint::Plan,
        "cannot leave component instance",
    );
}

#[test]
fn an_allocator_that_lies_hurts_only_its_own_plugin() {
    let outside = Handwritten::new().with(REALLOC, "(i32.const 0xffffff00)");
    outside.check_plan(GuestFailure::BadBatch, EntryPoint::Plan, "realloc");
    let misaligned = Handwritten::new().with(REALLOC, "(i32.const 4097)");
    misaligned.check_plan(GuestFailure::BadBatch, EntryPoint::Plan, "not aligned");
    // Zero and one place for everything are addresses like others: the guest overwrites itself.
    let zero = Handwritten::new().with(REALLOC, "(i32.const 0)");
    zero.open(&limits()).unwrap().process_batch(0, &batch(1)).unwrap();
}

#[test]
fn results_outside_of_memory_or_misaligned_are_not_read() {
    let outside = Handwritten::new().with(PLAN, "(i32.const 0x7ffffff0)");
    outside.check_plan(GuestFailure::BadBatch, EntryPoint::Plan, "out of bounds");
    let misaligned = Handwritten::new().with(PLAN, "(i32.const 1025)");
    misaligned.check_plan(GuestFailure::BadBatch, EntryPoint::Plan, "not aligned");
    // Ok, and a list of 2^32-1 nodes at address 2^32-16.
    let list = "(i32.store (i32.const 1064) (i32.const 0xfffffff0)) (i32.store (i32.const 1068) (i32.const -1)) \
                (i32.const 1024)";
    Handwritten::new().with(PLAN, list).check_plan(GuestFailure::BadBatch, EntryPoint::Plan, "out of bounds");
}

#[test]
fn values_that_a_type_does_not_have_are_refused() {
    Handwritten::new().with(PROCESS_BATCH, "(i32.const 7)").check(GuestFailure::BadBatch, "");
    let result = "(i32.store8 (i32.const 1024) (i32.const 9)) (i32.const 1024)";
    Handwritten::new().with(PLAN, result).check_plan(GuestFailure::BadBatch, EntryPoint::Plan, "");
    let log = r#"(import "engine:plugin/logging@0.1.0" "log" (func $log (param i32 i32 i32)))"#;
    let call = "(call $log (i32.const 99) (i32.const 0) (i32.const 0)) (i32.const 0)";
    Handwritten::new().importing(log).with(PROCESS_BATCH, call).check(GuestFailure::BadBatch, "");
}

#[test]
fn a_list_larger_than_the_host_takes_is_not_read() {
    let mut plugin = Handwritten::new().importing(EMIT).with(
        PROCESS_BATCH,
        "(call $emit (i32.const 0) (i32.const 1) (i32.const 0) (i32.const 0x8000000)) (i32.const 0)",
    );
    plugin.memory_pages = 2049;
    let mut limits = limits();
    limits.memory_bytes_max = 256 << 20;
    let mut segment = plugin.open_with(&limits);
    let error = segment.process_batch(0, &batch(1)).unwrap_err();
    assert_eq!(error.failure, GuestFailure::OutputLimit, "{error}");
    assert!(error.message.contains("sandbox.emit.bytes-max"), "{error}");
    assert_eq!(segment.target().count, 0);
}

impl Handwritten {
    /// As [`Handwritten::open`], for plugins whose memory is above the default limit.
    fn open_with(&self, limits: &SandboxLimits) -> Segment<Recorder> {
        let plugin = self.compile();
        let replay = Replay { args: vec![], graph_digest: graph_digest(&plugin.plan(&[], limits).unwrap()) };
        Segment::open(
            &plugin,
            &replay,
            &context(),
            limits.clone(),
            CancelFlag::default(),
            SegmentRestore::default(),
            Recorder::default(),
        )
        .unwrap()
    }
}

#[test]
fn a_memory_larger_than_the_limit_from_the_start_is_refused() {
    let mut plugin = Handwritten::new();
    plugin.memory_pages = 1025;
    plugin.check_plan(GuestFailure::MemoryLimit, EntryPoint::Instantiate, "sandbox.memory.max");
}

#[test]
fn a_table_cannot_grow_above_the_limit() {
    let grow = "(if (i32.eq (table.grow $table (ref.null func) (i32.const 10000000)) (i32.const -1)) \
                (then (unreachable))) (i32.const 0)";
    Handwritten::new()
        .field("(table $table 1 funcref)")
        .with(PROCESS_BATCH, grow)
        .check(GuestFailure::MemoryLimit, "sandbox.table.max");
    Handwritten::new().field("(table 20001 funcref)").check_plan(
        GuestFailure::MemoryLimit,
        EntryPoint::Instantiate,
        "sandbox.table.max",
    );
}

#[test]
fn arithmetic_traps_are_named() {
    Handwritten::new()
        .with(PROCESS_BATCH, "(i32.div_u (i32.const 1) (local.get 0))")
        .check(GuestFailure::Trap, "integer divide by zero");
    Handwritten::new()
        .field("(type $none (func)) (table 1 funcref)")
        .with(PROCESS_BATCH, "(call_indirect (type $none) (i32.const 0)) (i32.const 0)")
        .check(GuestFailure::Trap, "uninitialized element");
    Handwritten::new()
        .field("(type $none (func)) (table 1 funcref)")
        .with(PROCESS_BATCH, "(call_indirect (type $none) (i32.const 5)) (i32.const 0)")
        .check(GuestFailure::Trap, "undefined element");
}

#[test]
fn a_mark_that_cannot_be_true_counts_as_unknown() {
    // Node 77 and row 500 of a batch of one row; then an address outside of memory.
    let lie = "(i32.store (i32.const 2048) (i32.const 77)) (i32.store (i32.const 2052) (i32.const 500)) (unreachable)";
    let error = Handwritten::new().with(PROCESS_BATCH, lie).open(&limits()).unwrap();
    let error = { error }.process_batch(0, &batch(1)).unwrap_err();
    assert_eq!((error.node, error.row), (None, None));
    let outside = Handwritten::new()
        .with("engine:plugin/operator-chain@0.1.0#mark-address", "(i32.const -1)")
        .with(PROCESS_BATCH, "(unreachable)");
    let error = outside.open(&limits()).unwrap().process_batch(0, &batch(1)).unwrap_err();
    assert_eq!((error.node, error.row), (None, None));
}

#[test]
fn functions_of_other_types_are_refused_before_compiling() {
    let mut plugin = Handwritten::new();
    let close = plugin.bodies.iter_mut().find(|(name, ..)| name.ends_with("#close")).unwrap();
    close.1 = "(result i64)";
    close.2 = "(i64.const 0)";
    let error = plugin.admit().unwrap_err();
    assert_eq!(error.code(), "contract-types");
    let text = error.to_string();
    assert!(!text.contains("\\n") && !text.contains("offset") && text.contains("close"), "{text}");
    assert!(text.ends_with("built with another version of the SDK: build it anew with `engine build`"), "{text}");
    let mut plugin = Handwritten::new();
    plugin.bodies.retain(|(name, ..)| !name.ends_with("#close"));
    let error = plugin.admit().unwrap_err();
    assert_eq!(error.code(), "contract-types");
    assert!(error.to_string().contains("close"), "{error}");
}
