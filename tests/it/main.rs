//! Whole jobs through the command line.

mod artifacts;
mod nexmark;
mod word_count;
mod tutorial;
mod topology;
mod upgrade;
mod refusals;
mod grants;
mod row_errors;
mod restarts;
mod print;
mod recovery;
mod hostile;
mod cluster;
mod event_time;
mod exactly_once;
mod checkpoint_faults;
mod inspect;
mod savepoints;
mod operators;
mod wire;
