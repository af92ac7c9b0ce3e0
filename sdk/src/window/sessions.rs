//! Sessions: windows that merge where they intersect or touch.

use std::ops::Range;

use super::TimeWindow;
use crate::{
    error::Result,
    record::{DecodeError, Nesting, Owned, Reader, Record, TypeDescriptor, Value, decode_value, owned_record},
};

/// The windows among `windows`, which are in the order of time and apart from one another,
/// that become one with `window`.
pub(crate) fn merged_by<S>(sessions: &[S], window: TimeWindow, of: impl Fn(&S) -> TimeWindow) -> Range<usize> {
    // Most records belong to the last session or begin one behind it.
    let mut end = sessions.len();
    if sessions.last().is_some_and(|session| window.end < of(session).start) {
        end = sessions.partition_point(|session| of(session).start <= window.end);
    }
    let mut start = end;
    while 0 < start && of(&sessions[start - 1]).touches(&window) {
        start -= 1;
    }
    start..end
}

/// The sessions of one key, in the order of time, with the timer that is pending for it.
pub(crate) struct Sessions<A> {
    /// Timestamp of the only timer; `i64::MAX` if none is pending.
    pub(crate) timer: i64,
    pub(crate) sessions: Vec<Session<A>>,
}

/// One session with its content.
pub(crate) struct Session<A> {
    pub(crate) window: TimeWindow,
    /// None only before the first record was added.
    pub(crate) content: Option<A>,
}

impl<A> Default for Sessions<A> {
    fn default() -> Self {
        Self { timer: i64::MAX, sessions: Vec::new() }
    }
}

impl<A> Sessions<A> {
    /// The sessions that become one with `window`.
    #[inline]
    pub(crate) fn merged_by(&self, window: TimeWindow) -> Range<usize> {
        merged_by(&self.sessions, window, |session| session.window)
    }

    /// Makes one session of `window` and those of the range, which it touches; returns its index.
    ///
    /// # Errors
    /// Returns the error of `merge`; the sessions are as before then.
    pub(crate) fn merge(
        &mut self,
        range: Range<usize>,
        window: TimeWindow,
        merge: impl Fn(&mut Option<A>, A) -> Result<()>,
    ) -> Result<usize>
    where
        A: Clone,
    {
        let index = range.start;
        match range.len() {
            0 => self.sessions.insert(index, Session { window, content: None }),
            1 => self.sessions[index].window = self.sessions[index].window.cover(&window),
            _ => {
                let mut merged = Session { window, content: None };
                for session in &self.sessions[range.clone()] {
                    merged.window = merged.window.cover(&session.window);
                    if let Some(content) = session.content.clone() {
                        merge(&mut merged.content, content)?;
                    }
                }
                self.sessions.splice(range, [merged]);
            }
        }
        Ok(index)
    }
}

impl<'v, A: Owned> Value<'v> for Sessions<A> {
    fn descriptor(nesting: Nesting) -> TypeDescriptor {
        let content = A::descriptor(nesting.inner().inner().inner());
        let session = TypeDescriptor::Tuple(vec![TypeDescriptor::I64, TypeDescriptor::I64, content]);
        TypeDescriptor::Tuple(vec![TypeDescriptor::I64, TypeDescriptor::List(Box::new(session))])
    }

    fn read(reader: &mut Reader<'v>) -> Result<Self, DecodeError> {
        let timer = i64::read(reader)?;
        let sessions = (0..reader.count()?).map(|_| {
            let window = TimeWindow::new(i64::read(reader)?, i64::read(reader)?);
            let content = A::decode_within(reader, |content, _| content)?;
            Ok(Session { window, content: Some(content) })
        });
        Ok(Self { timer, sessions: sessions.collect::<Result<_, _>>()? })
    }

    fn write(&self, out: &mut Vec<u8>) {
        self.timer.write(out);
        u32::try_from(self.sessions.len()).expect("a value within a record is shorter than 4 GiB").write(out);
        for session in &self.sessions {
            session.window.start.write(out);
            session.window.end.write(out);
            A::encode_within(session.content.as_ref().expect("empty sessions are removed at once"), out);
        }
    }

    fn weigh(&self, scratch: &mut Vec<u8>) -> usize {
        // All sessions are taken to weigh as much as the last.
        let content = self.sessions.last().and_then(|session| session.content.as_ref());
        let content_bytes = content.map_or(0, |content| A::weigh(content, scratch));
        size_of::<i64>() + self.sessions.len() * (2 * size_of::<i64>() + content_bytes)
    }
}

owned_record!([A: Owned] Sessions<A>);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::window::vectors::Random;

    /// Text tells which records a session is made of.
    fn append(into: &mut Option<String>, other: String) -> Result<()> {
        into.get_or_insert_default().push_str(&other);
        Ok(())
    }

    #[test]
    fn sessions_are_what_repeated_merging_of_all_pairs_gives() {
        for seed in 0..10_000 {
            let random = &mut Random(seed);
            let mut sessions: Sessions<String> = Sessions::default();
            let mut model: Vec<(TimeWindow, Vec<String>)> = Vec::new();
            for number in 0..random.range(1, 30) {
                let start = random.range(-100, 100);
                let window = TimeWindow::new(start, start + random.range(1, 12));
                let index = sessions.merge(sessions.merged_by(window), window, append).expect("merges");
                append(&mut sessions.sessions[index].content, format!("{number},")).expect("merges");

                model.push((window, vec![format!("{number},")]));
                while let Some((first, second)) = touching(&model) {
                    let (window, content) = model.remove(second);
                    model[first].0 = model[first].0.cover(&window);
                    model[first].1.extend(content);
                }
                model.sort_by_key(|(window, _)| *window);
                let windows = |(window, content): &(TimeWindow, Vec<String>)| {
                    let mut content = content.clone();
                    content.sort();
                    (*window, content)
                };
                let got = sessions.sessions.iter().map(|session| {
                    let content = session.content.as_deref().expect("a session has content");
                    let mut content: Vec<_> = content.split_inclusive(',').map(str::to_owned).collect();
                    content.sort();
                    (session.window, content)
                });
                assert_eq!(got.collect::<Vec<_>>(), model.iter().map(windows).collect::<Vec<_>>(), "seed {seed}");
            }
            let mut encoded = Vec::new();
            <Sessions<String> as Record>::encode(&sessions, &mut encoded);
            let windows = |sessions: &Sessions<String>| -> Vec<_> {
                sessions.sessions.iter().map(|session| (session.window, session.content.clone())).collect()
            };
            let decoded = <Sessions<String> as Record>::decode(&encoded, |sessions| sessions).expect("decodes");
            assert_eq!((decoded.timer, windows(&decoded)), (sessions.timer, windows(&sessions)));
        }
    }

    fn touching(model: &[(TimeWindow, Vec<String>)]) -> Option<(usize, usize)> {
        let pairs = (0..model.len()).flat_map(|first| (first + 1..model.len()).map(move |second| (first, second)));
        pairs.into_iter().find(|(first, second)| model[*first].0.touches(&model[*second].0))
    }
}
