//! Queries of the Nexmark benchmark over the events of an auction site.
//!
//! Operators with state have a uid, under which it is found again when a job goes on from a
//! savepoint: without one that would depend on the chains, and so on the parallelism.

mod events;
mod stateless;
mod joins;
mod windows;
mod winning_bids;
mod totals;

use engine_sdk::prelude::*;

/// Answers a query of the Nexmark benchmark. Writes rows of comma-separated values.
///
///   --query NAME    q0 to q5, q7, q8, q9, q11, q15, q17 to q20 or q22
///   --input PATH    reads events, a JSON object a line, from a file, a directory or a pattern
///   --events N      generates the first N events instead
///   --rate R        reads or generates at most R events a second
///   --output DIR    writes into a new or empty directory; without it, prints
///   --discard       writes nothing
///
/// Events may come up to four seconds of event time behind others.
#[engine_sdk::job]
fn main(env: &StreamExecutionEnvironment, args: &Args) -> Result<()> {
    let known = ["q0", "q1", "q2", "q3", "q4", "q5", "q7", "q8", "q9", "q11", "q15", "q17", "q18", "q19", "q20", "q22"];
    let query = args.one_of("query", &known)?;
    let rows = match query {
        "q0" => stateless::pass_through(&events::bids(env, args)?),
        "q1" => stateless::currency_conversion(&events::bids(env, args)?),
        "q2" => stateless::selection(&events::bids(env, args)?),
        "q3" => joins::local_item_suggestion(&events::read(env, args)?),
        "q4" => winning_bids::average_price_for_category(&events::read(env, args)?),
        "q5" => windows::hot_items(&events::bids(env, args)?),
        "q7" => windows::highest_bid(&events::bids(env, args)?),
        "q8" => joins::monitor_new_users(&events::read(env, args)?),
        "q9" => winning_bids::winning_bids_of_auctions(&events::read(env, args)?),
        "q11" => windows::user_sessions(&events::bids(env, args)?),
        "q15" => totals::bidding_statistics(&events::bids(env, args)?),
        "q17" => totals::auction_statistics(&events::bids(env, args)?),
        "q18" => totals::last_bids(&events::bids(env, args)?),
        "q19" => totals::top_ten_bids(&events::bids(env, args)?),
        "q20" => joins::expanded_bids(&events::read(env, args)?),
        _ => stateless::url_directories(&events::read(env, args)?),
    };
    match (args.get::<String>("output")?, args.flag("discard")) {
        (None, true) => rows.sink_to(DiscardSink),
        (Some(directory), false) => rows.sink_to(FileSink::text_lines(directory)).uid("rows"),
        (None, false) => rows.print(),
        (Some(_), true) => engine_sdk::bail!("give one of --output and --discard"),
    };
    env.set_job_name(&format!("Nexmark {query}"));
    Ok(())
}

#[cfg(test)]
mod tests;
