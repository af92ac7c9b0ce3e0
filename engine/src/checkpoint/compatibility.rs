//! Whether a program can go on from the state of another: of its older version, or of a
//! checkpoint. Decides before anything runs what would carry over, be lost, or not fit.

use std::{collections::BTreeMap, fmt};

use serde::Serialize;

use super::{
    CheckpointMetadata, OperatorState,
    evolution::{Evolution, evolution},
};
use crate::{
    base::ids::OperatorId,
    connector::{Role, keeps_output},
    graph::{
        job_graph::{ChainedOperator, JobGraph},
        stream_graph::{Operator, StateDeclaration, StateKind},
    },
};

/// An operator, as far as its state goes.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct OperatorSchema {
    /// Under which its state is kept.
    pub operator_id: OperatorId,
    /// Which wins over `operator_id` when it looks for state.
    pub user_defined_id: Option<OperatorId>,
    /// For people.
    pub name: String,
    /// For people.
    pub uid: Option<String>,
    /// Type of its key; none: it has no keyed state.
    pub key_type: Option<String>,
    /// Its states.
    pub states: Vec<StateDeclaration>,
    /// The native source or sink that it is.
    pub connector: Option<ConnectorSchema>,
    /// Number of subtasks; 0 in a checkpoint, where it decides nothing.
    pub parallelism: u32,
    /// Number of key groups.
    pub max_parallelism: u32,
    /// True if that must not change.
    pub max_parallelism_configured: bool,
}

/// A native source, whose positions are state, or sink, whose rows may be.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ConnectorSchema {
    /// Which of both.
    pub role: Role,
    /// Name of the connector; none: that of an operator of a checkpoint, which does not say it.
    pub name: Option<String>,
}

impl ConnectorSchema {
    fn has_state(&self) -> bool {
        self.role == Role::Source || self.name.as_deref().is_none_or(keeps_output)
    }

    /// What is kept of it.
    fn kept(&self) -> &'static str {
        match self.role {
            Role::Source => "its positions in the input",
            Role::Sink => "its rows that are not visible yet",
        }
    }

    fn shown(&self) -> String {
        let role = match self.role {
            Role::Source => "source",
            Role::Sink => "sink",
        };
        self.name.as_ref().map_or_else(|| format!("another {role}"), |name| format!("a {role} \"{name}\""))
    }
}

/// The operators of a program or of a checkpoint.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct ProgramSchema {
    /// In the order of the program.
    pub operators: Vec<OperatorSchema>,
}

impl From<&JobGraph> for ProgramSchema {
    fn from(graph: &JobGraph) -> Self {
        let of_vertices = graph.vertices.iter().flat_map(|vertex| {
            vertex.operators.iter().map(move |operator| {
                let ChainedOperator { node, operator_id, user_defined_id, .. } = operator;
                OperatorSchema {
                    operator_id: *operator_id,
                    user_defined_id: *user_defined_id,
                    name: node.name.clone(),
                    uid: node.uid.clone(),
                    key_type: node.key_type.clone(),
                    states: node.states.clone(),
                    connector: match &node.operator {
                        Operator::Source(spec) => {
                            Some(ConnectorSchema { role: Role::Source, name: Some(spec.name.clone()) })
                        }
                        Operator::Sink(spec) => {
                            Some(ConnectorSchema { role: Role::Sink, name: Some(spec.name.clone()) })
                        }
                        Operator::Guest(_) | Operator::GuestSource(_) => None,
                    },
                    parallelism: vertex.parallelism,
                    max_parallelism: vertex.max_parallelism,
                    max_parallelism_configured: vertex.max_parallelism_configured,
                }
            })
        });
        Self { operators: of_vertices.collect() }
    }
}

impl From<&CheckpointMetadata> for ProgramSchema {
    fn from(metadata: &CheckpointMetadata) -> Self {
        Self { operators: metadata.operators.values().filter(|state| !state.is_empty()).map(of_state).collect() }
    }
}

fn of_state(state: &OperatorState) -> OperatorSchema {
    let mut key_type = None;
    let mut states: Vec<StateDeclaration> = Vec::new();
    let mut add = |declaration: &StateDeclaration| {
        if states.iter().all(|known| known.name != declaration.name) {
            states.push(declaration.clone());
        }
    };
    for subtask in state.subtasks.values() {
        if let Some(keyed) = &subtask.keyed {
            key_type.get_or_insert_with(|| keyed.key_type.clone());
            keyed.states.iter().for_each(&mut add);
        }
        subtask.lists.iter().for_each(|list| add(&list.declaration));
    }
    let mut subtasks = state.subtasks.values();
    let role = if state.coordinator.is_some() || subtasks.clone().any(|subtask| !subtask.splits.is_empty()) {
        Some(Role::Source)
    } else if subtasks.any(|subtask| !subtask.committables.is_empty()) {
        Some(Role::Sink)
    } else {
        None
    };
    OperatorSchema {
        operator_id: state.operator_id,
        user_defined_id: None,
        name: state.name.clone(),
        uid: state.uid.clone(),
        key_type,
        states,
        connector: role.map(|role| ConnectorSchema { role, name: None }),
        parallelism: 0,
        max_parallelism: state.max_parallelism,
        max_parallelism_configured: false,
    }
}

impl OperatorSchema {
    fn has_state(&self) -> bool {
        !self.states.is_empty() || self.key_type.is_some() || self.connector_with_state().is_some()
    }

    fn connector_with_state(&self) -> Option<&ConnectorSchema> {
        self.connector.as_ref().filter(|connector| connector.has_state())
    }

    /// What is lost if no operator takes its place, and how to keep it.
    fn gone(&self) -> String {
        let kept = self.connector_with_state().map_or("its state", ConnectorSchema::kept);
        let same_id = match &self.uid {
            Some(uid) => format!("uid(\"{uid}\")"),
            None => format!(
                "uid_hash(\"{}\"), as this one had no uid, so that its id changes with its place in the graph",
                self.operator_id
            ),
        };
        format!(
            "the new program has no such operator, and {kept} would be lost: give the one that takes its place \
             {same_id}; or drop it with --allow-non-restored-state"
        )
    }

    /// As messages name it.
    fn shown(&self) -> String {
        match &self.uid {
            Some(uid) => format!("\"{}\" (uid {uid})", self.name),
            None => format!("\"{}\" ({})", self.name, self.operator_id),
        }
    }
}

/// What becomes of the state of an operator, or of one of its states.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "fate")]
pub enum Fate {
    /// The new program goes on with it; with what changes in its type.
    CarriedOver {
        /// One phrase each.
        changes: Vec<String>,
    },
    /// It was not there before and begins empty.
    New,
    /// The new program has no place for it.
    Lost {
        /// What to do about it.
        help: String,
    },
    /// The new program cannot go on from this state.
    Refused {
        /// What does not fit, and what to do.
        problem: String,
    },
}

/// What becomes of one thing.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct StateFate {
    /// The operator.
    pub operator: String,
    /// One of its states; none: all that it has.
    pub state: Option<String>,
    /// What becomes of it.
    #[serde(flatten)]
    pub fate: Fate,
}

/// What would become of all state.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize)]
pub struct Compatibility {
    /// In the order of the old program, then what is new.
    pub fates: Vec<StateFate>,
}

impl Compatibility {
    /// Compares a program with what it is to go on from.
    pub fn between(old: &ProgramSchema, new: &ProgramSchema) -> Self {
        let mut comparison = Self::default();
        let mut matched: BTreeMap<OperatorId, OperatorId> = BTreeMap::new();
        let is_old = |id: &OperatorId| old.operators.iter().any(|operator| operator.operator_id == *id);
        for operator in &new.operators {
            let found = operator.user_defined_id.filter(is_old).or(Some(operator.operator_id).filter(is_old));
            if let Some(found) = found {
                matched.insert(found, operator.operator_id);
            }
        }
        for old_operator in old.operators.iter().filter(|operator| operator.has_state()) {
            let successor = matched.get(&old_operator.operator_id);
            match new.operators.iter().find(|operator| Some(&operator.operator_id) == successor) {
                Some(operator) => comparison.compare(old_operator, operator),
                None => comparison.add(old_operator, None, Fate::Lost { help: old_operator.gone() }),
            }
        }
        let is_new = |operator: &&OperatorSchema| !matched.values().any(|id| *id == operator.operator_id);
        for operator in new.operators.iter().filter(is_new).filter(|operator| operator.has_state()) {
            comparison.add(operator, None, Fate::New);
        }
        comparison
    }

    fn add(&mut self, operator: &OperatorSchema, state: Option<&str>, fate: Fate) {
        self.fates.push(StateFate { operator: operator.shown(), state: state.map(str::to_owned), fate });
    }

    fn compare(&mut self, old: &OperatorSchema, new: &OperatorSchema) {
        let refused = |problem: String| Fate::Refused { problem };
        if new.max_parallelism_configured && old.max_parallelism != new.max_parallelism {
            let problem = format!(
                "its max parallelism was {} and is set to {}: key groups cannot be dealt anew, set it to {0}",
                old.max_parallelism, new.max_parallelism
            );
            self.add(new, None, refused(problem));
        }
        if old.max_parallelism < new.parallelism {
            let problem = format!(
                "its parallelism of {} is above the {} key groups of its state: lower it",
                new.parallelism, old.max_parallelism
            );
            self.add(new, None, refused(problem));
        }
        match (&old.key_type, &new.key_type) {
            (Some(old_type), Some(new_type)) if old_type != new_type => {
                let problem = format!("its key was {old_type} and is {new_type}: keys cannot change, use another uid");
                return self.add(new, None, refused(problem));
            }
            (Some(_), None) if !old.states.is_empty() => {
                let problem = "it was keyed and is not any more: use another uid".to_owned();
                return self.add(new, None, refused(problem));
            }
            _ => {}
        }
        if let Some(connector) = old.connector_with_state() {
            self.add(new, None, compare_connectors(connector, new.connector.as_ref()));
        } else if new.connector_with_state().is_some() {
            self.add(new, None, Fate::New);
        }
        for old_state in &old.states {
            let fate = match new.states.iter().find(|state| state.name == old_state.name) {
                None => Fate::Lost { help: "the operator does not declare it any more".to_owned() },
                Some(state) => {
                    compare_states(old_state, state).map_or_else(refused, |changes| Fate::CarriedOver { changes })
                }
            };
            self.add(new, Some(&old_state.name), fate);
        }
        for state in &new.states {
            if old.states.iter().all(|old_state| old_state.name != state.name) {
                self.add(new, Some(&state.name), Fate::New);
            }
        }
    }

    /// True if the new program cannot be started from the old state, or would lose some.
    pub fn is_refused(&self, allow_non_restored_state: bool) -> bool {
        self.fates.iter().any(|entry| match entry.fate {
            Fate::Refused { .. } => true,
            // A state that is no longer declared is what its author wanted to be rid of.
            Fate::Lost { .. } => entry.state.is_none() && !allow_non_restored_state,
            Fate::CarriedOver { .. } | Fate::New => false,
        })
    }
}

/// What becomes of positions or output.
fn compare_connectors(old: &ConnectorSchema, new: Option<&ConnectorSchema>) -> Fate {
    let kept = old.kept();
    match new.filter(|new| new.role == old.role) {
        None => Fate::Lost {
            help: format!(
                "it was {} and is none any more, and {kept} would be lost: use another uid, and give this one to what \
                 takes its place; or drop it with --allow-non-restored-state",
                old.shown()
            ),
        },
        Some(new) if new.has_state() && (old.name.is_none() || old.name == new.name) => {
            Fate::CarriedOver { changes: Vec::new() }
        }
        Some(new) => Fate::Refused {
            problem: format!("{kept} are those of {}, and it is {}: use another uid", old.shown(), new.shown()),
        },
    }
}

/// What changes in a state that is carried over, or why it cannot be, with both types.
fn compare_states(old: &StateDeclaration, new: &StateDeclaration) -> Result<Vec<String>, String> {
    let (old_type, new_type) = (&old.value_type, &new.value_type);
    let mut changes = match evolution(old, new) {
        Evolution::Same => Vec::new(),
        Evolution::Converted(conversion) => {
            let becomes = format!("its values become {new_type}, they were {old_type}");
            let begins = "in values that are there, each new field begins as zero, false, empty or none";
            let begins = conversion.adds_fields().then(|| begins.to_owned());
            [becomes].into_iter().chain(begins).collect()
        }
        Evolution::Incompatible(reason) => {
            return Err(format!(
                "{reason}; it was written as {} of {old_type}, and would be read as {} of {new_type}: give it another \
                 name, or keep the type",
                kind(old.kind),
                kind(new.kind)
            ));
        }
    };
    if old.time_to_live != new.time_to_live {
        changes.push("the time-to-live changes, for entries written from now on".to_owned());
    }
    Ok(changes)
}

fn kind(kind: StateKind) -> String {
    format!("{kind:?}").to_lowercase()
}

impl fmt::Display for Compatibility {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        type Section = (&'static str, fn(&Fate) -> bool);
        let sections: [Section; 4] = [
            ("Fails", |fate| matches!(fate, Fate::Refused { .. })),
            ("Is lost", |fate| matches!(fate, Fate::Lost { .. })),
            ("Carries over", |fate| matches!(fate, Fate::CarriedOver { .. })),
            ("Begins empty", |fate| matches!(fate, Fate::New)),
        ];
        let mut is_first = true;
        for (title, is_in) in sections {
            let mut entries = self.fates.iter().filter(|entry| is_in(&entry.fate)).peekable();
            if entries.peek().is_none() {
                continue;
            }
            if !is_first {
                writeln!(formatter)?;
            }
            is_first = false;
            writeln!(formatter, "{title}:")?;
            for StateFate { operator, state, fate } in entries {
                write!(formatter, "  {operator}")?;
                if let Some(state) = state {
                    write!(formatter, ", state \"{state}\"")?;
                }
                match fate {
                    Fate::CarriedOver { changes } if changes.is_empty() => {}
                    Fate::CarriedOver { changes } => write!(formatter, ": {}", changes.join("; "))?,
                    Fate::New => {}
                    Fate::Lost { help } => write!(formatter, ": {help}")?,
                    Fate::Refused { problem } => write!(formatter, ": {problem}")?,
                }
                writeln!(formatter)?;
            }
        }
        if is_first { writeln!(formatter, "Neither program has state.") } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(name: &str, value_type: &str) -> StateDeclaration {
        StateDeclaration {
            name: name.to_owned(),
            kind: StateKind::Value,
            value_type: value_type.to_owned(),
            map_key_type: None,
            time_to_live: None,
            taken_at_end: false,
        }
    }

    fn operator(id: u8, name: &str, states: &[(&str, &str)]) -> OperatorSchema {
        OperatorSchema {
            operator_id: OperatorId::from_bytes([id; 16]),
            user_defined_id: None,
            name: name.to_owned(),
            uid: Some(name.to_lowercase()),
            key_type: Some("string".to_owned()),
            states: states.iter().map(|(name, value_type)| state(name, value_type)).collect(),
            connector: None,
            parallelism: 2,
            max_parallelism: 128,
            max_parallelism_configured: false,
        }
    }

    #[expect(clippy::unnecessary_wraps, reason = "it is a field")]
    fn connector(role: Role, name: &str) -> Option<ConnectorSchema> {
        Some(ConnectorSchema { role, name: Some(name.to_owned()) })
    }

    fn native(id: u8, role: Role, name: &str) -> OperatorSchema {
        OperatorSchema { uid: None, key_type: None, connector: connector(role, name), ..operator(id, "Native", &[]) }
    }

    fn compared(old: Vec<OperatorSchema>, new: Vec<OperatorSchema>) -> Compatibility {
        Compatibility::between(&ProgramSchema { operators: old }, &ProgramSchema { operators: new })
    }

    #[test]
    fn a_program_says_what_it_takes_over_loses_and_refuses() {
        let old = vec![
            operator(1, "Count", &[("count", "u64"), ("last", "string"), ("seen", "bool")]),
            operator(2, "Gone", &[("x", "u8")]),
        ];
        let new = vec![
            operator(1, "Count", &[("count", "u32"), ("last", "option<string>"), ("first", "u8")]),
            operator(3, "Fresh", &[("y", "u8")]),
        ];
        let comparison = compared(old, new);
        assert!(comparison.is_refused(true));
        assert_eq!(
            comparison.to_string(),
            "Fails:\n  \
             \"Count\" (uid count), state \"count\": u64 cannot be read as u32; it was written as value of u64, and would be \
             read as value of u32: give it another name, or keep the type\n\n\
             Is lost:\n  \
             \"Count\" (uid count), state \"seen\": the operator does not declare it any more\n  \
             \"Gone\" (uid gone): the new program has no such operator, and its state would be lost: give the one that \
             takes its place uid(\"gone\"); or drop it with --allow-non-restored-state\n\n\
             Carries over:\n  \
             \"Count\" (uid count), state \"last\": its values become option<string>, they were string\n\n\
             Begins empty:\n  \
             \"Count\" (uid count), state \"first\"\n  \
             \"Fresh\" (uid fresh)\n"
        );
    }

    #[test]
    fn a_new_field_and_what_it_begins_with_are_told() {
        let lines = |old: &str, new: &str| {
            compared(vec![operator(1, "A", &[("x", old)])], vec![operator(1, "A", &[("x", new)])]).to_string()
        };
        let begins = "; in values that are there, each new field begins as zero, false, empty or none\n";
        assert!(lines("Low{count:u64}", "Low{count:u64,least:f64}").ends_with(begins));
        assert!(lines("list<Low{a:u8}>", "list<Low{a:u8,b:option<u8>}>").ends_with(begins));
        assert!(lines("Low{count:u32,gone:u8}", "Low{count:u64}").ends_with("they were Low{count:u32,gone:u8}\n"));
    }

    #[test]
    fn an_operator_that_is_gone_is_refused_unless_that_is_wanted() {
        let comparison = compared(vec![operator(2, "Gone", &[("x", "u8")])], Vec::new());
        assert!(comparison.is_refused(false));
        assert!(!comparison.is_refused(true));
    }

    #[test]
    fn a_user_defined_id_finds_the_state_of_an_operator_without_uid() {
        let old = operator(2, "Old", &[("x", "u8")]);
        let mut new = operator(9, "New", &[("x", "u8")]);
        new.user_defined_id = Some(old.operator_id);
        let comparison = compared(vec![old], vec![new]);
        assert_eq!(comparison.to_string(), "Carries over:\n  \"New\" (uid new), state \"x\"\n");
    }

    #[test]
    fn keys_kinds_and_sources_must_stay() {
        let fails = |change: &dyn Fn(&mut OperatorSchema), expected: &str| {
            let old = OperatorSchema { connector: connector(Role::Source, "file"), ..operator(1, "A", &[("x", "u8")]) };
            let mut new = old.clone();
            change(&mut new);
            let comparison = compared(vec![old], vec![new]);
            assert!(comparison.is_refused(true));
            let text = comparison.to_string();
            assert!(text.contains(expected), "{text}");
        };
        fails(&|new| new.key_type = Some("u64".to_owned()), "its key was string and is u64: keys cannot change");
        fails(
            &|new| new.states[0].kind = StateKind::List,
            "it was written as value of u8, and would be read as list of u8",
        );
        fails(&|new| new.states[0].time_to_live = Some(5), "a time-to-live can be neither added nor removed");
        fails(
            &|new| new.connector = connector(Role::Source, "nexmark"),
            "its positions in the input are those of a source \"file\", and it is a source \"nexmark\": use another uid",
        );
        fails(
            &|new| new.parallelism = 200,
            "its parallelism of 200 is above the 128 key groups of its state: lower it",
        );
        fails(
            &|new| (new.max_parallelism, new.max_parallelism_configured) = (64, true),
            "its max parallelism was 128 and is set to 64: key groups cannot be dealt anew, set it to 128",
        );
    }

    #[test]
    fn positions_and_rows_that_are_not_visible_yet_can_be_lost() {
        for (role, name, kept) in [
            (Role::Source, "socket", "its positions in the input"),
            (Role::Sink, "file", "its rows that are not visible yet"),
        ] {
            let comparison = compared(vec![native(1, role, name)], vec![native(2, role, name)]);
            assert!(comparison.is_refused(false) && !comparison.is_refused(true));
            assert_eq!(
                comparison.to_string(),
                format!(
                    "Is lost:\n  \"Native\" ({old}): the new program has no such operator, and {kept} would be lost: give \
                     the one that takes its place uid_hash(\"{old}\"), as this one had no uid, so that its id changes \
                     with its place in the graph; or drop it with --allow-non-restored-state\n\n\
                     Begins empty:\n  \"Native\" ({new})\n",
                    old = OperatorId::from_bytes([1; 16]),
                    new = OperatorId::from_bytes([2; 16]),
                )
            );
            let stays = compared(vec![native(1, role, name)], vec![native(1, role, name)]);
            assert!(!stays.is_refused(false) && stays.to_string().starts_with("Carries over:\n  \"Native\""));
            let no_connector = OperatorSchema { connector: None, ..native(1, role, name) };
            let comparison = compared(vec![native(1, role, name)], vec![no_connector]);
            assert!(comparison.is_refused(false) && !comparison.is_refused(true), "{comparison}");
        }
    }

    #[test]
    fn sinks_that_keep_no_rows_have_nothing_to_lose() {
        for name in ["print", "socket", "discard"] {
            let sink = native(1, Role::Sink, name);
            assert!(!compared(vec![sink.clone()], Vec::new()).is_refused(false), "{name}");
            // Rows of a file sink are of no use to them, by their names and by what a checkpoint says.
            for old in [connector(Role::Sink, "file"), Some(ConnectorSchema { role: Role::Sink, name: None })] {
                let old = OperatorSchema { connector: old, ..sink.clone() };
                assert!(compared(vec![old], vec![sink.clone()]).is_refused(true), "{name}");
            }
        }
    }

    #[test]
    fn programs_without_state_have_nothing_to_lose() {
        let stateless = OperatorSchema { key_type: None, ..operator(1, "Map", &[]) };
        let comparison = compared(vec![stateless.clone()], Vec::new());
        assert!(!comparison.is_refused(false));
        assert_eq!(comparison.to_string(), "Neither program has state.\n");
    }
}
