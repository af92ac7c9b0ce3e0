//! Whole jobs through the command line.

mod nexmark;
mod word_count;
mod refusals;
