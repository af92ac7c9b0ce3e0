//! `engine list`: the jobs of a JobManager.

use clap::Args;

use super::{GlobalOptions, JobManagerOption, Outcome, Output, progress, settings};
use crate::{
    base::{config::options, status::JobStatus},
    client::{job_snapshot::JobSummary, rest_client::RestClient},
};

/// `engine list`.
#[derive(Debug, Args)]
#[command(after_help = "Without -r, -s and -a both running and scheduled jobs are listed.\n\n\
    Examples:\n  engine list\n  engine list -a --output json\n  engine list -m http://10.0.0.5:8081 -r")]
pub(crate) struct ListOptions {
    #[command(flatten)]
    job_manager: JobManagerOption,
    /// Jobs that run, restart or are being ended.
    #[arg(short, long)]
    running: bool,
    /// Jobs that have not begun.
    #[arg(short, long)]
    scheduled: bool,
    /// All jobs, ended ones too.
    #[arg(short, long)]
    all: bool,
}

/// The client of the JobManager that options and configuration name.
pub(crate) fn client(job_manager: &JobManagerOption, global: &GlobalOptions) -> Result<RestClient, super::CliError> {
    let mut explicit = settings::ExplicitSettings::default();
    explicit.add("--jobmanager", &options::JOB_MANAGER_URL, job_manager.jobmanager.as_ref());
    let configuration = settings::load(global, &explicit)?;
    super::logging::start(global, "warn", None)?;
    Ok(RestClient::new(&configuration)?)
}

pub(crate) fn run(list: &ListOptions, global: &GlobalOptions) -> Outcome {
    let mut jobs = client(&list.job_manager, global)?.jobs()?;
    let by_default = !list.running && !list.scheduled;
    jobs.retain(|job| {
        let is_scheduled = matches!(job.state, JobStatus::Created | JobStatus::Initializing);
        let is_running = !is_scheduled && !job.state.is_globally_terminal();
        list.all || (is_running && (list.running || by_default)) || (is_scheduled && (list.scheduled || by_default))
    });
    jobs.sort_by_key(|job| (job.start_time, job.id));
    match global.output {
        Output::Json => super::print_json(&jobs),
        Output::Text if jobs.is_empty() => {
            super::say(if list.all {
                "there are no jobs"
            } else {
                "there are no such jobs; -a shows all, also those that have ended"
            });
            Ok(())
        }
        Output::Text => super::print(&jobs.iter().map(line).collect::<Vec<_>>().join("\n")),
    }
}

fn line(job: &JobSummary) -> String {
    format!(
        "{}  {}  {:12} {:>16}  {}",
        time_text(job.start_time),
        job.id,
        job.state,
        progress::duration_text(u64::try_from(job.duration).unwrap_or(0)),
        progress::shortened(&job.name)
    )
}

/// Milliseconds since the epoch as "2026-11-30 12:34:56Z", by the proleptic Gregorian calendar.
pub(crate) fn time_text(millis: i64) -> String {
    let seconds = millis.div_euclid(1000);
    let (days, second) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    // Days from the first of March of the year 0, in eras of 400 years.
    let days = days + 719_468;
    let (era, day_of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = era * 400 + year_of_era + i64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02} {:02}:{:02}:{:02}Z", second / 3600, second / 60 % 60, second % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_the_calendar() {
        for (seconds, expected) in [
            (0, "1970-01-01 00:00:00Z"),
            (951_827_696, "2000-02-29 12:34:56Z"),
            (1_709_251_199, "2024-02-29 23:59:59Z"),
            (4_107_542_400, "2100-03-01 00:00:00Z"),
            (-1, "1969-12-31 23:59:59Z"),
        ] {
            assert_eq!(time_text(seconds * 1000), expected);
        }
    }
}
