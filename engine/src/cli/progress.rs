//! Shows how a job gets on: on a terminal a line per vertex that is kept up to
//! date, on a pipe plain lines from time to time; and a summary at its end.

use std::{io::IsTerminal, time::Duration};

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use serde_json::{Value, json};

use super::say;
use crate::{
    base::clock::Timestamp,
    client::job_snapshot::{JobSnapshot, VertexSnapshot},
    protocol::job_master::HoldingSubtask,
};

/// Between two pictures on a terminal.
const TERMINAL_INTERVAL: Duration = Duration::from_secs(1);
/// Between two reports on a pipe.
const PIPE_INTERVAL: Duration = Duration::from_secs(10);
/// Vertices that are shown on a terminal; the rest is counted.
const SHOWN_VERTICES_MAX: usize = 12;
/// Restarts of which the cause is shown.
const SHOWN_RESTARTS_MAX: usize = 5;
/// Characters of a vertex's name.
const NAME_CHARS_MAX: usize = 40;

/// What was shown last, and where.
pub(crate) struct Progress {
    screen: Option<Screen>,
    last: Option<(JobSnapshot, Timestamp)>,
    started: Timestamp,
}

struct Screen {
    bars: MultiProgress,
    lines: Vec<ProgressBar>,
}

impl Progress {
    /// Pictures if standard error is a terminal, else lines.
    pub(crate) fn on_standard_error(now: Timestamp) -> Self {
        let screen = std::io::stderr().is_terminal().then(|| Screen { bars: MultiProgress::new(), lines: Vec::new() });
        Self { screen, last: None, started: now }
    }

    /// Between two calls of [`Progress::show`].
    pub(crate) fn interval(&self) -> Duration {
        if self.screen.is_some() { TERMINAL_INTERVAL } else { PIPE_INTERVAL }
    }

    pub(crate) fn show(&mut self, snapshot: &JobSnapshot, now: Timestamp) {
        let (since, former) = match &self.last {
            Some((former, then)) => (now.since(*then), Some(former)),
            None => (now.since(self.started), None),
        };
        let lines = lines(former, snapshot, since);
        match &mut self.screen {
            Some(screen) => screen.draw(&lines),
            None => lines.iter().for_each(|line| say(line)),
        }
        self.last = Some((snapshot.clone(), now));
    }

    /// Removes the picture, so that text can follow.
    pub(crate) fn clear(&mut self) {
        if let Some(screen) = &mut self.screen {
            for line in screen.lines.drain(..) {
                line.finish_and_clear();
            }
        }
    }
}

impl Screen {
    fn draw(&mut self, lines: &[String]) {
        let shown = if lines.len() <= SHOWN_VERTICES_MAX + 1 { lines } else { &lines[..=SHOWN_VERTICES_MAX] };
        while self.lines.len() < shown.len() {
            let bar = self.bars.add(ProgressBar::no_length());
            bar.set_style(ProgressStyle::with_template("{msg}").expect("the template is a valid one"));
            self.lines.push(bar);
        }
        for (bar, line) in self.lines.iter().zip(shown) {
            bar.set_message(line.clone());
        }
    }
}

/// One line for the job and one for each vertex.
fn lines(former: Option<&JobSnapshot>, snapshot: &JobSnapshot, since: Duration) -> Vec<String> {
    let mut head = format!("{} {}", duration_text(snapshot.duration_ms), snapshot.status);
    if 0 < snapshot.restarts {
        head.push_str(&format!(", {}", restart_count(snapshot.restarts)));
    }
    if let Some(shortage) = snapshot.slot_shortage {
        head.push_str(&format!(", {shortage}"));
    }
    let mut lines = vec![head];
    for (id, vertex) in &snapshot.vertices {
        let nothing = VertexSnapshot::default();
        let before = former
            .and_then(|former| former.vertices.iter().find(|(known, _)| known == id))
            .map_or(&nothing, |(_, vertex)| vertex);
        lines.push(vertex_line(before, vertex, since));
    }
    lines
}

/// Rows and bytes that came in; what a source makes itself counts where it goes out.
fn flow(vertex: &VertexSnapshot) -> (u64, u64) {
    if vertex.records_in == 0 { (vertex.records_out, vertex.bytes_out) } else { (vertex.records_in, vertex.bytes_in) }
}

fn vertex_line(before: &VertexSnapshot, now: &VertexSnapshot, since: Duration) -> String {
    let ((rows_before, bytes_before), (rows, bytes)) = (flow(before), flow(now));
    // After a restart the counters begin anew.
    let (rows_before, bytes_before) =
        if rows < rows_before || bytes < bytes_before { (0, 0) } else { (rows_before, bytes_before) };
    let time = |vertex: &VertexSnapshot| vertex.back_pressured_ms + vertex.idle_ms + vertex.busy_ms;
    let passed = time(now).saturating_sub(time(before));
    let pressed = now.back_pressured_ms.saturating_sub(before.back_pressured_ms);
    let share = (pressed * 100).checked_div(passed).unwrap_or(0).min(100);
    format!(
        "  {:NAME_CHARS_MAX$} {}/{}  {:>14} rows  {:>12}/s  {:>9}/s  back-pressure {share} %",
        shortened(&now.name),
        now.running_or_finished,
        now.parallelism,
        grouped(rows),
        grouped(per_second(rows - rows_before, since)),
        bytes_text(per_second(bytes - bytes_before, since)),
    )
}

fn per_second(count: u64, since: Duration) -> u64 {
    let millis = u64::try_from(since.as_millis()).unwrap_or(u64::MAX).max(1);
    count.saturating_mul(1000) / millis
}

/// The first characters of a name, none of which controls the terminal.
pub(crate) fn shortened(name: &str) -> String {
    let mut shown: String = name.chars().take(NAME_CHARS_MAX).map(|c| if c.is_control() { '?' } else { c }).collect();
    if NAME_CHARS_MAX < name.chars().count() {
        shown.pop();
        shown.push('…');
    }
    shown
}

/// Digits in groups of three.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (index, digit) in digits.chars().enumerate() {
        if 0 < index && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Bytes with a decimal unit and three digits.
pub(crate) fn bytes_text(bytes: u64) -> String {
    let units = [(1_000_000_000_000, "TB"), (1_000_000_000, "GB"), (1_000_000, "MB"), (1000, "kB")];
    match units.into_iter().find(|(size, _)| *size <= bytes) {
        Some((size, unit)) if bytes / size < 10 => format!("{}.{:02} {unit}", bytes / size, bytes % size * 100 / size),
        Some((size, unit)) if bytes / size < 100 => format!("{}.{} {unit}", bytes / size, bytes % size * 10 / size),
        Some((size, unit)) => format!("{} {unit}", bytes / size),
        None => format!("{bytes} B"),
    }
}

/// For example "0.42 s" or "1 h 02 min 03 s".
pub(crate) fn duration_text(millis: u64) -> String {
    let seconds = millis / 1000;
    match seconds {
        0..60 => format!("{seconds}.{:02} s", millis % 1000 / 10),
        60..3600 => format!("{} min {:02} s", seconds / 60, seconds % 60),
        _ => format!("{} h {:02} min {:02} s", seconds / 3600, seconds / 60 % 60, seconds % 60),
    }
}

/// How the job ended, with a table of its vertices.
pub(crate) fn summary(snapshot: &JobSnapshot) -> String {
    let mut text = format!(
        "Job {} \"{}\" is {} after {}",
        snapshot.id,
        shortened(&snapshot.name),
        snapshot.status,
        duration_text(snapshot.duration_ms)
    );
    if let Some(shortage) = snapshot.slot_shortage {
        text.push_str(&format!("\n  {shortage}"));
    }
    text.push_str(&format!(
        "\n  {:NAME_CHARS_MAX$} {:>8} {:>15} {:>15} {:>9} {:>9}",
        "vertex", "subtasks", "rows in", "rows out", "in", "out"
    ));
    for (_, vertex) in &snapshot.vertices {
        text.push_str(&format!(
            "\n  {:NAME_CHARS_MAX$} {:>8} {:>15} {:>15} {:>9} {:>9}",
            shortened(&vertex.name),
            vertex.parallelism,
            grouped(vertex.records_in),
            grouped(vertex.records_out),
            bytes_text(vertex.bytes_in),
            bytes_text(vertex.bytes_out)
        ));
        for line in time_and_state(vertex) {
            text.push_str(&format!("\n    {line}"));
        }
    }
    text.push_str(&format!(
        "\n  {} rejected rows, {}",
        grouped(snapshot.rejected_rows()),
        restart_count(snapshot.restarts)
    ));
    if 0 < snapshot.restarts {
        text.push_str(&format!(" that cost {}", duration_text(snapshot.downtime_ms)));
    }
    if 0 < snapshot.dropped_log_lines() {
        let count = grouped(snapshot.dropped_log_lines());
        text.push_str(&format!(", {count} log lines of the plugin dropped (above sandbox.log.bytes-per-second)"));
    }
    text
}

fn restart_count(restarts: u64) -> String {
    if restarts == 1 { "1 restart".to_owned() } else { format!("{} restarts", grouped(restarts)) }
}

/// The last restarts, a line each: when, how long it took until all tasks ran again, and why.
pub(crate) fn restarts(snapshot: &JobSnapshot) -> String {
    let mut text = String::new();
    for restart in snapshot.last_restarts.iter().take(SHOWN_RESTARTS_MAX) {
        let time = time_text(restart.time);
        let downtime = duration_text(restart.downtime_ms);
        let down = if restart.is_under_way { "down since, for " } else { "down for " };
        text.push_str(&format!("\n  restarted at {time}, {down}{downtime}: "));
        if let Some(task) = &restart.task {
            text.push_str(&format!("task {}: ", shortened(task)));
        }
        text.push_str(&restart.cause);
    }
    text
}

/// Lines on the watermarks and the state of a vertex's operators: of those with state
/// or late records, and of those that have not come to the end of event time.
fn time_and_state(vertex: &VertexSnapshot) -> Vec<String> {
    let mut lines = Vec::new();
    for operator in &vertex.operators {
        let watermarks = [("in", operator.watermark_in), ("out", operator.watermark_out)];
        let shown = watermarks.iter().filter_map(|(name, time)| Some(format!("{name} {}", time_text((*time)?))));
        let shown: Vec<String> = shown.collect();
        let is_at_end = watermarks.iter().all(|(_, time)| time.is_none_or(|time| time == i64::MAX));
        let mut parts = Vec::new();
        if !shown.is_empty() && (!is_at_end || operator.state.is_some()) {
            parts.push(format!("watermark {}", shown.join(", ")));
        }
        if let Some(state) = &operator.state {
            let mut kept = match state.entries {
                // The bytes of empty tables tell nobody anything.
                0 => "no state in the engine".to_owned(),
                entries => format!("state {} in {} entries in the engine", bytes_text(state.bytes), grouped(entries)),
            };
            let looks = state.cache_hits.saturating_add(state.cache_misses);
            if let Some(permille) = u128::from(state.cache_hits).saturating_mul(1000).checked_div(looks.into()) {
                let (bytes, entries) = (bytes_text(state.cache_bytes), grouped(state.cache_entries));
                kept.push_str(&format!(", {bytes} in {entries} entries in caches"));
                kept.push_str(&format!(", {}.{} % hits", permille / 10, permille % 10));
            }
            parts.push(kept);
            parts.push(format!("{} timers", grouped(state.timers)));
        }
        if let Some(late) = operator.late_records {
            parts.push(format!("{} late records dropped", grouped(late)));
        }
        if !parts.is_empty() {
            lines.push(format!("{}: {}", shortened(&operator.name), parts.join("; ")));
        }
    }
    if let Some(HoldingSubtask { vertex, subtask_index, watermark }) = &vertex.held_back_by {
        let time = watermark.map_or_else(|| "no watermark yet".to_owned(), time_text);
        lines.push(format!("held back by {} (subtask {}): {time}", shortened(vertex), subtask_index + 1));
    }
    lines
}

/// A time in UTC, for example "2026-11-30T04:05:06.789Z", or "end" for the end of event time.
pub(crate) fn time_text(millis: i64) -> String {
    if millis == i64::MAX {
        return "end".to_owned();
    }
    let (days, of_day) = (millis.div_euclid(86_400_000), millis.rem_euclid(86_400_000));
    // Days from 1 March of the year 0, so that a leap day is the last of its year.
    let days = days + 719_468;
    let (era, of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let of_year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let day_of_year = of_era - (365 * of_year + of_year / 4 - of_year / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let year = 400 * era + of_year + i64::from(10 <= month);
    let month = if month < 10 { month + 3 } else { month - 9 };
    let (seconds, millis) = (of_day / 1000, of_day % 1000);
    let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{millis:03}Z")
}

/// The same for scripts.
pub(crate) fn summary_json(snapshot: &JobSnapshot) -> Value {
    let vertices: Vec<Value> = snapshot
        .vertices
        .iter()
        .map(|(id, vertex)| {
            let mut entry = serde_json::to_value(vertex).expect("numbers and text serialize");
            entry["id"] = json!(id);
            entry
        })
        .collect();
    json!({
        "job-id": snapshot.id,
        "name": snapshot.name,
        "status": snapshot.status,
        "duration-ms": snapshot.duration_ms,
        "restarts": snapshot.restarts,
        "downtime-ms": snapshot.downtime_ms,
        "last-restarts": snapshot.last_restarts,
        "slots-awaited": snapshot.slot_shortage.map(|shortage| shortage.needed),
        "slots-available": snapshot.slot_shortage.and_then(|shortage| shortage.available),
        "rejected-rows": snapshot.rejected_rows(),
        "dropped-log-lines": snapshot.dropped_log_lines(),
        "failure": snapshot.failure.as_ref().map(|failure| &failure.message),
        "failure-code": snapshot.failure.as_ref().map(|failure| &failure.code),
        "failure-detail": snapshot.failure.as_ref().map(|failure| &failure.detail),
        "vertices": vertices,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::job_snapshot::{OperatorSnapshot, StateSnapshot};

    #[test]
    fn numbers_are_readable() {
        for (number, expected) in [(0, "0"), (999, "999"), (1000, "1,000"), (1_234_567, "1,234,567")] {
            assert_eq!(grouped(number), expected);
        }
        for (bytes, expected) in
            [(999, "999 B"), (1000, "1.00 kB"), (12_345, "12.3 kB"), (1_234_567, "1.23 MB"), (456_000_000, "456 MB")]
        {
            assert_eq!(bytes_text(bytes), expected);
        }
        for (millis, expected) in
            [(5, "0.00 s"), (1230, "1.23 s"), (61_000, "1 min 01 s"), (3_723_000, "1 h 02 min 03 s")]
        {
            assert_eq!(duration_text(millis), expected);
        }
    }

    #[test]
    fn times_are_readable() {
        // As `date -u -d @SECONDS` prints them.
        for (millis, expected) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_399_999, "2000-02-28T23:59:59.999Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (951_868_800_000, "2000-03-01T00:00:00.000Z"),
            (1_735_689_599_001, "2024-12-31T23:59:59.001Z"),
            (-1, "1969-12-31T23:59:59.999Z"),
            (253_402_300_799_999, "9999-12-31T23:59:59.999Z"),
            (i64::MAX, "end"),
        ] {
            assert_eq!(time_text(millis), expected);
        }
    }

    #[test]
    fn time_and_state_are_told_where_there_is_something_to_tell() {
        let idle = OperatorSnapshot {
            name: "Map".to_owned(),
            watermark_in: Some(i64::MAX),
            watermark_out: Some(i64::MAX),
            ..OperatorSnapshot::default()
        };
        let counting = OperatorSnapshot {
            name: "Count".to_owned(),
            watermark_in: Some(5000),
            watermark_out: Some(4000),
            late_records: Some(1234),
            state: Some(StateSnapshot {
                bytes: 1500,
                entries: 2000,
                cache_bytes: 64_000,
                cache_entries: 840,
                timers: 7,
                cache_hits: 996,
                cache_misses: 4,
            }),
        };
        let holding = HoldingSubtask { vertex: "Source".to_owned(), subtask_index: 2, watermark: Some(4000) };
        let vertex = VertexSnapshot {
            operators: vec![idle, counting],
            held_back_by: Some(holding),
            ..VertexSnapshot::default()
        };
        let expected = [
            "Count: watermark in 1970-01-01T00:00:05.000Z, out 1970-01-01T00:00:04.000Z; state 1.50 kB in 2,000 \
             entries in the engine, 64.0 kB in 840 entries in caches, 99.6 % hits; 7 timers; 1,234 late records dropped",
            "held back by Source (subtask 3): 1970-01-01T00:00:04.000Z",
        ];
        assert_eq!(time_and_state(&vertex), expected);
    }

    #[test]
    fn one_restart_is_no_plural() {
        assert_eq!([0, 1, 1200].map(restart_count), ["0 restarts", "1 restart", "1,200 restarts"]);
    }

    #[test]
    fn names_cannot_control_the_terminal() {
        assert_eq!(shortened("a\u{1b}[2Jb\n"), "a?[2Jb?");
        assert_eq!(shortened(&"é".repeat(50)), format!("{}…", "é".repeat(NAME_CHARS_MAX - 1)));
    }

    #[test]
    fn rates_are_of_the_time_between_two_looks() {
        let before = VertexSnapshot { records_in: 100, bytes_in: 1000, idle_ms: 500, ..VertexSnapshot::default() };
        let now = VertexSnapshot {
            name: "Map".to_owned(),
            parallelism: 4,
            running_or_finished: 3,
            records_in: 2100,
            bytes_in: 5000,
            idle_ms: 1000,
            back_pressured_ms: 250,
            busy_ms: 250,
            ..VertexSnapshot::default()
        };
        let line = vertex_line(&before, &now, Duration::from_secs(2));
        let words: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(words.join(" "), "Map 3/4 2,100 rows 1,000/s 2.00 kB/s back-pressure 25 %");
        // Counters that went back began anew.
        let line = vertex_line(&now, &before, Duration::from_secs(1));
        assert!(line.contains(" 100/s"), "{line}");
    }
}
