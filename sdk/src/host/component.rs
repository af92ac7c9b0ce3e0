//! The imports of a component.

pub(crate) use crate::bindings::engine::plugin::{
    logging::{log, max_level, panicked},
    metrics::{add, record, register, set},
    output::{emit, emit_watermark, emit_watermark_status, fail, reject_row, report_split_time},
};
