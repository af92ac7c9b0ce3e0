//! The imports of a component.

pub(crate) use crate::bindings::engine::plugin::{
    keyed_state::{append_many, clear_many, get_many, load_maps, put_many, scan_map},
    logging::{log, max_level, panicked},
    metrics::{add, record, register, set},
    operator_state::{get as get_operator_state, put as put_operator_state},
    output::{emit, emit_watermark, emit_watermark_status, fail, reject_row, report_split_time},
    timers::{delete_many as delete_timers, processing_time, register_many as register_timers},
};
