//! From a JSON record to the texts in it: plain text, chat messages, response logs.
//!
//! Without further wishes each text and each message content is a text by itself, and nothing is added around it.

use std::{borrow::Cow, fmt, sync::Arc};

use anyhow::Result;

use super::{
    node::Node,
    response::{calls_of, responses, texts_of},
};

/// Whose messages are visited.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Speakers {
    /// Everyone's.
    #[default]
    All,
    /// Only what the model itself wrote: assistant messages, responses in logs.
    Assistant,
}

/// The texts of a chat, as the model's own template renders them.
pub type Rendered = Vec<String>;

/// Renders a list of messages (a [`Node::List`]) into texts.
pub type Render = dyn Fn(&Node<'_>) -> Result<Rendered> + Send + Sync;

/// What to take from the records.
#[derive(Clone)]
pub struct Extract {
    /// The member that holds the text or the messages; `None` looks for the usual names.
    pub field: Option<String>,
    /// Whose messages.
    pub speakers: Speakers,
    /// Whether reasoning (`reasoning_content`, `<think>...</think>`) is visited too.
    pub thinking: bool,
    /// Renders chats; `None` visits each content by itself.
    pub render: Option<Arc<Render>>,
    /// Of all documents, those whose hash lies in `[from, to)` of the 2^32 values; `(0, 1 << 32)` takes all.
    pub share: (u64, u64),
}

impl Default for Extract {
    fn default() -> Self {
        Self { field: None, speakers: Speakers::All, thinking: true, render: None, share: (0, 1 << 32) }
    }
}

impl fmt::Debug for Extract {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { field, speakers, thinking, render, share } = self;
        write!(f, "Extract {{ {field:?}, {speakers:?}, thinking: {thinking}, share: {share:?}, ")?;
        write!(f, "render: {} }}", render.is_some())
    }
}

type Visit<'v> = &'v mut dyn FnMut(&str) -> Result<()>;

/// Why a record holds no text, or what the visitor said.
type Walked = Result<Result<()>, String>;

impl Extract {
    /// The same with another member for the text, where a source has its own.
    pub fn of_field(&self, field: Option<&str>) -> Cow<'_, Self> {
        match field {
            Some(field) => Cow::Owned(Self { field: Some(field.to_owned()), ..self.clone() }),
            None => Cow::Borrowed(self),
        }
    }

    /// Whether the share is everything.
    pub fn takes_all(&self) -> bool {
        self.share == (0, 1 << 32)
    }

    /// Whether the document belongs to the share; the same bytes give the same answer everywhere.
    pub fn takes(&self, document: &[u8]) -> bool {
        self.takes_all() || (self.share.0..self.share.1).contains(&(fixed_hash(document) >> 32))
    }

    /// Visits the texts of one JSON line. The outer error says why the record cannot be read; the inner one is the
    /// visitor's.
    pub(super) fn line(&self, line: &[u8], visit: Visit<'_>) -> Walked {
        let line = std::str::from_utf8(line).map_err(|e| format!("is not UTF-8 at its byte {}", e.valid_up_to()))?;
        let record: Node<'_> = serde_json::from_str(line).map_err(|e| format!("is not JSON: {}", brief(&e)))?;
        if !matches!(record, Node::Object(_)) {
            return Err(format!("is {}, expected a JSON object", record.kind()));
        }
        self.record(&record, visit)
    }

    fn record(&self, record: &Node<'_>, visit: Visit<'_>) -> Walked {
        if let Some(field) = &self.field {
            let found = field.split('.').try_fold(record, |node, key| node.get(key));
            let node = found.ok_or_else(|| format!("has no member `{field}`"))?;
            return self.value(field, node, visit);
        }
        if let Some(responses) = responses(record) {
            return responses.iter().try_fold(Ok(()), |done, response| match done {
                Ok(()) => self.response(&response.message, visit),
                Err(error) => Ok(Err(error)),
            });
        }
        for name in ["text", "content", "messages", "conversations"] {
            match record.get(name) {
                None | Some(Node::Null) => {}
                Some(node) => return self.value(name, node, visit),
            }
        }
        Err("has none of `text`, `content`, `messages`, `conversations`, `choices` (name the member with `--field`)"
            .into())
    }

    fn value(&self, name: &str, node: &Node<'_>, visit: Visit<'_>) -> Walked {
        match node {
            Node::Text(text) => Ok(self.text(text, visit)),
            Node::List(messages) if messages.iter().all(|m| matches!(m, Node::Object(_))) => match &self.render {
                Some(render) => match render(node) {
                    Ok(texts) => Ok(texts.iter().try_for_each(|text| visit(text))),
                    Err(error) => Err(format!("cannot be rendered by the chat template: {error:#}")),
                },
                None => self.messages(messages, visit),
            },
            node => Err(format!("has {} in `{name}`, expected a string or a list of messages", node.kind())),
        }
    }

    fn messages(&self, messages: &[Node<'_>], visit: Visit<'_>) -> Walked {
        for message in messages {
            let role = ["role", "from"].iter().find_map(|key| message.get(key)).and_then(Node::as_text);
            if self.speakers == Speakers::Assistant && !matches!(role, Some("assistant" | "gpt" | "model" | "bot")) {
                continue;
            }
            if let Err(error) = self.message(message, visit)? {
                return Ok(Err(error));
            }
        }
        Ok(Ok(()))
    }

    fn message(&self, message: &Node<'_>, visit: Visit<'_>) -> Walked {
        let reasoning = ["reasoning_content", "reasoning"].iter().find_map(|key| message.get(key)?.as_text());
        let content = ["content", "value", "text"].iter().find_map(|key| message.get(key));
        if let Some(node @ (Node::Scalar(_) | Node::Object(_))) = content {
            return Err(format!("has a message whose content is {}, expected a string", node.kind()));
        }
        let reasoning = reasoning.filter(|_| self.thinking).map_or(Ok(()), &mut *visit);
        let texts = content.map_or_else(Vec::new, texts_of);
        Ok(reasoning
            .and_then(|()| texts.iter().try_for_each(|text| self.text(text, visit)))
            .and_then(|()| calls_of(message).iter().try_for_each(|text| visit(text))))
    }

    /// What a server logged: as the model's template writes it behind a question, where only the model's side is wanted.
    fn response(&self, message: &Node<'_>, visit: Visit<'_>) -> Walked {
        let is_chat = message.get("role").is_some();
        match &self.render {
            Some(_) if is_chat && self.speakers == Speakers::Assistant => {
                let text = |text: &'static str| Node::Text(text.into());
                let question = Node::Object(vec![("role".into(), text("user")), ("content".into(), text(""))]);
                self.value("messages", &Node::List(vec![question, message.clone()]), visit)
            }
            _ => self.message(message, visit),
        }
    }

    fn text(&self, text: &str, visit: Visit<'_>) -> Result<()> {
        if self.thinking { visit(text) } else { visit(&without_thinking(text)) }
    }
}

/// The text without its `<think>...</think>` spans; an opened span that never closes reaches to the end, and one that
/// never opened (the template opens it in the prompt) starts at the beginning.
pub fn without_thinking(text: &str) -> Cow<'_, str> {
    const OPEN: &str = "<think>";
    const CLOSE: &str = "</think>";
    let Some(first_close) = text.find(CLOSE).or_else(|| text.find(OPEN).map(|_| text.len())) else {
        return Cow::Borrowed(text);
    };
    let mut kept = String::new();
    let mut rest = text;
    if !text[..first_close].contains(OPEN) {
        rest = &text[first_close + CLOSE.len()..];
    }
    while let Some(open) = rest.find(OPEN) {
        kept.push_str(&rest[..open]);
        rest = rest[open..].split_once(CLOSE).map_or("", |(_, rest)| rest);
    }
    kept.push_str(rest);
    Cow::Owned(kept)
}

/// serde_json's message without its own line number, which is always 1 here.
fn brief(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let text = text.split(" at line ").next().unwrap_or(&text);
    format!("{text} at column {}", error.column())
}

/// A fixed 64-bit hash of the bytes (multiply and fold, eight bytes at a time): which share a document belongs to must
/// not depend on the program's version.
pub fn fixed_hash(bytes: &[u8]) -> u64 {
    const K: u64 = 0x9e37_79b9_7f4a_7c15;
    let fold = |h: u64, word: u64| {
        let product = u128::from(h ^ word) * u128::from(K);
        (product as u64) ^ (product >> 64) as u64
    };
    let mut chunks = bytes.chunks_exact(8);
    let mut h = K ^ bytes.len() as u64;
    for chunk in &mut chunks {
        let mut word = [0; 8];
        word.copy_from_slice(chunk);
        h = fold(h, u64::from_le_bytes(word));
    }
    let mut tail = [0; 8];
    tail[..chunks.remainder().len()].copy_from_slice(chunks.remainder());
    fold(fold(h, u64::from_le_bytes(tail)), K)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(extract: &Extract, line: &str) -> Result<Vec<String>, String> {
        let mut texts = Vec::new();
        extract
            .line(line.as_bytes(), &mut |text| {
                texts.push(text.to_owned());
                Ok(())
            })
            .map(|visited| visited.unwrap())
            .map(|()| texts)
    }

    #[test]
    fn every_shape_of_record_gives_its_texts() {
        let all = Extract::default();
        let cases = [
            (r#"{"text": "a", "id": 1}"#, vec!["a"]),
            (r#"{"content": "b\n"}"#, vec!["b\n"]),
            (
                r#"{"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "r"}]}"#,
                vec!["q", "r"],
            ),
            (r#"{"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "r"}]}"#, vec!["q", "r"]),
            (r#"{"messages": [{"role": "user", "content": [{"type": "text", "text": "p"}]}]}"#, vec!["p"]),
            (
                r#"{"choices": [{"message": {"content": "c", "reasoning_content": "t"}}, {"text": "d"}]}"#,
                vec!["t", "c", "d"],
            ),
            (r#"{"custom_id": "1", "response": {"body": {"choices": [{"message": {"content": "e"}}]}}}"#, vec!["e"]),
            (
                r#"{"prompt": "q", "outputs": [{"index": 0, "text": "f", "token_ids": [5]}, {"text": "g"}]}"#,
                vec!["f", "g"],
            ),
            (
                r#"{"object": "response", "text": {"format": {"type": "text"}}, "output": [
                    {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "t"}]},
                    {"type": "function_call", "name": "n", "arguments": "{}"}, {"type": "web_search_call", "id": "1"},
                    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "h"}]}]}"#,
                vec!["t", "h", "n", "{}"],
            ),
            (
                r#"{"choices": [{"message": {"content": null, "tool_calls": [
                    {"type": "function", "function": {"name": "n", "arguments": "{\"a\": 1}"}}]}}]}"#,
                vec!["n", "{\"a\": 1}"],
            ),
            (
                r#"{"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "n", "arguments": {"b": 1, "a": 2}}}]}]}"#,
                vec!["n", r#"{"b":1,"a":2}"#],
            ),
        ];
        for (line, expected) in cases {
            assert_eq!(texts(&all, line).unwrap(), expected, "{line}");
        }
    }

    #[test]
    fn bad_records_say_what_they_are() {
        let all = Extract::default();
        assert_eq!(texts(&all, "[1]").unwrap_err(), "is a list, expected a JSON object");
        assert!(texts(&all, "{\"text\": ").unwrap_err().starts_with("is not JSON: EOF while parsing a value"));
        assert!(texts(&all, "{\"text\": 3}").unwrap_err().contains("has a number in `text`"));
        assert!(texts(&all, "{\"body\": \"x\"}").unwrap_err().contains("has none of"));
        let named = Extract { field: Some("a.b".into()), ..Extract::default() };
        assert_eq!(texts(&named, r#"{"a": {"b": "x"}}"#).unwrap(), ["x"]);
        assert_eq!(texts(&named, r#"{"a": 1}"#).unwrap_err(), "has no member `a.b`");
    }

    #[test]
    fn assistant_alone_with_and_without_thinking() {
        let line = r#"{"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "<think>t</think>r"}]}"#;
        let mut only = Extract { speakers: Speakers::Assistant, ..Extract::default() };
        assert_eq!(texts(&only, line).unwrap(), ["<think>t</think>r"]);
        only.thinking = false;
        assert_eq!(texts(&only, line).unwrap(), ["r"]);
        assert_eq!(without_thinking("t</think>r"), "r");
        assert_eq!(without_thinking("a<think>t"), "a");
    }

    #[test]
    fn shares_partition_the_documents() {
        let half = |share| Extract { share, ..Extract::default() };
        let (low, high) = (half((0, 1 << 31)), half((1 << 31, 1 << 32)));
        let documents: Vec<String> = (0..1000).map(|i| format!("document {i}")).collect();
        let n_low = documents.iter().filter(|d| low.takes(d.as_bytes())).count();
        assert!(documents.iter().all(|d| low.takes(d.as_bytes()) != high.takes(d.as_bytes())));
        assert!((400..600).contains(&n_low), "{n_low}");
    }
}
