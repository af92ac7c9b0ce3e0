//! `engine savepoint inspect --state` and `--timers`: what a savepoint or checkpoint holds, a line for each entry.

use std::{
    fmt::Write as _,
    io::{BufWriter, Write as _},
};

use serde_json::json;

use super::{CliError, Outcome, Output, progress::time_text};
use crate::{
    checkpoint::{Column, ExportError, ExportedEntry, Namespace, StateExport},
    state::TimeDomain,
};

/// Prints all entries: JSON Lines, or comma-separated values below a line of names.
pub(crate) fn print(export: &StateExport<'_>, output: Output) -> Outcome {
    let columns = export.columns();
    let mut out = BufWriter::new(std::io::stdout().lock());
    if output == Output::Text {
        let names: Vec<&str> = columns.iter().map(|column| name(*column)).collect();
        writeln!(out, "{}", names.join(","))?;
    }
    let mut line = String::new();
    export
        .export(&mut |entry| {
            line.clear();
            match output {
                Output::Json => json_line(&columns, entry, &mut line),
                Output::Text => csv_line(&columns, entry, &mut line),
            }
            line.push('\n');
            out.write_all(line.as_bytes())
        })
        .map_err(|error| match error {
            ExportError::Output(error) => CliError::from(error),
            other => CliError::failed(other),
        })?;
    Ok(out.flush()?)
}

fn name(column: Column) -> &'static str {
    match column {
        Column::Subtask => "subtask",
        Column::Key => "key",
        Column::Window => "window",
        Column::MapKey => "map-key",
        Column::Index => "index",
        Column::Value => "value",
        Column::Until => "until",
        Column::Domain => "domain",
        Column::Timestamp => "timestamp",
    }
}

fn domain_name(domain: Option<TimeDomain>) -> &'static str {
    match domain {
        Some(TimeDomain::EventTime) => "event-time",
        Some(TimeDomain::ProcessingTime) => "processing-time",
        None => "",
    }
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().fold(String::from("0x"), |mut text, byte| {
        write!(text, "{byte:02x}").expect("text has room");
        text
    })
}

fn json_line(columns: &[Column], entry: &ExportedEntry, out: &mut String) {
    out.push('{');
    for column in columns {
        let value = match column {
            Column::Subtask => entry.subtask.to_string(),
            Column::Key => entry.key.clone(),
            Column::Window => match &entry.namespace {
                Namespace::None => continue,
                Namespace::Window(start, end) => format!("{{\"start\":{start},\"end\":{end}}}"),
                Namespace::Other(bytes) => json!(hexadecimal(bytes)).to_string(),
            },
            Column::MapKey => entry.map_key.clone(),
            Column::Index => entry.index.to_string(),
            Column::Value => entry.value.clone(),
            Column::Until => entry.until.to_string(),
            Column::Domain => json!(domain_name(entry.domain)).to_string(),
            Column::Timestamp => entry.timestamp.to_string(),
        };
        let comma = if out.len() == 1 { "" } else { "," };
        write!(out, "{comma}\"{}\":{value}", name(*column)).expect("text has room");
    }
    out.push('}');
}

fn csv_line(columns: &[Column], entry: &ExportedEntry, out: &mut String) {
    for (index, column) in columns.iter().enumerate() {
        out.push_str(if index == 0 { "" } else { "," });
        let cell = match column {
            Column::Subtask => entry.subtask.to_string(),
            Column::Key => plain(&entry.key),
            Column::Window => match &entry.namespace {
                Namespace::None => String::new(),
                Namespace::Window(i64::MIN, i64::MAX) => "global".to_owned(),
                Namespace::Window(start, end) => format!("{}/{}", time_text(*start), time_text(*end)),
                Namespace::Other(bytes) => hexadecimal(bytes),
            },
            Column::MapKey => plain(&entry.map_key),
            Column::Index => entry.index.to_string(),
            Column::Value => plain(&entry.value),
            Column::Until => time_text(entry.until),
            Column::Domain => domain_name(entry.domain).to_owned(),
            Column::Timestamp => time_text(entry.timestamp),
        };
        if cell.contains([',', '"', '\n', '\r']) {
            write!(out, "\"{}\"", cell.replace('"', "\"\"")).expect("text has room");
        } else {
            out.push_str(&cell);
        }
    }
}

/// Text without its quotes, unless something in it would control the terminal; other JSON as it is.
fn plain(json: &str) -> String {
    match serde_json::from_str::<String>(json) {
        Ok(text) if !text.contains(char::is_control) => text,
        Ok(_) | Err(_) => json.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_lines_of_json_or_of_values_with_commas_between_them() {
        let columns = [Column::Key, Column::Window, Column::MapKey, Column::Value, Column::Until];
        let mut entry = ExportedEntry {
            key: r#""a, \"b\"""#.to_owned(),
            namespace: Namespace::Window(0, 5000),
            map_key: "7".to_owned(),
            value: r#"{"n":1}"#.to_owned(),
            until: 9000,
            ..ExportedEntry::default()
        };
        let lines = |entry: &ExportedEntry| {
            let (mut json, mut csv) = (String::new(), String::new());
            json_line(&columns, entry, &mut json);
            csv_line(&columns, entry, &mut csv);
            (json, csv)
        };
        let (json, csv) = lines(&entry);
        let expected = r#"{"key":"a, \"b\"","window":{"start":0,"end":5000},"map-key":7,"value":{"n":1},"until":9000}"#;
        assert_eq!(json, expected);
        assert_eq!(
            csv,
            r#""a, ""b""",1970-01-01T00:00:00.000Z/1970-01-01T00:00:05.000Z,7,"{""n"":1}",1970-01-01T00:00:09.000Z"#
        );
        entry.namespace = Namespace::Window(i64::MIN, i64::MAX);
        assert!(lines(&entry).1.contains(",global,7,"));
        entry.namespace = Namespace::Other(vec![1, 0xab]);
        entry.key = r#""\u001b[2J""#.to_owned();
        let (json, csv) = lines(&entry);
        assert!(json.starts_with(r#"{"key":"\u001b[2J","window":"0x01ab","#), "{json}");
        assert!(csv.starts_with(r#""""\u001b[2J""",0x01ab,7,"#), "{csv}");
        entry.namespace = Namespace::None;
        assert!(lines(&entry).0.contains(r#""map-key":7"#) && !lines(&entry).0.contains("window"));
    }
}
