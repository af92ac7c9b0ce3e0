//! Log lines of user code.

use std::cell::Cell;

pub use crate::bindings::engine::plugin::logging::Level;
use crate::host;

thread_local! {
    /// The least level that the engine keeps, once asked.
    static LEVEL: Cell<Option<Level>> = const { Cell::new(None) };
}

/// Logs a line, unless the engine would drop it; what the macros call.
pub fn log(level: Level, message: std::fmt::Arguments<'_>) {
    let least = LEVEL.get().unwrap_or_else(|| {
        let least = host::max_level();
        LEVEL.set(Some(least));
        least
    });
    if (least as u8) <= (level as u8) {
        host::log(level, &message.to_string());
    }
}

macro_rules! log_macros {
    ($d:tt $($name:ident $level:ident $what:literal;)*) => { $(
        #[doc = $what]
        #[macro_export]
        macro_rules! $name {
            ($d($d message:tt)*) => {
                $crate::__private::log($crate::__private::Level::$level, ::core::format_args!($d($d message)*))
            };
        }
    )* };
}

log_macros! { $
    trace Trace "Logs a formatted line for those who follow each step.";
    debug Debug "Logs a formatted line for developers.";
    info Info "Logs a formatted line for those who run the job.";
    warn Warn "Logs a formatted line about something odd.";
    error Error "Logs a formatted line about something that failed.";
}
