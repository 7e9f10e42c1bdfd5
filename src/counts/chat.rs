//! Chats as the model sees them: rendered through its own Jinja template.
//!
//! What an assistant turn adds is the difference between the chat up to it and the prompt that asks for it; it is
//! counted by itself, because that is how the model writes it: behind a prompt whose tokens are fixed already.

use std::{
    borrow::Cow,
    io::{self, Write},
    path::Path,
    sync::Arc,
};

use anyhow::{Context, Result, anyhow, bail};
use minijinja::{Environment, ErrorKind, Value, context, value::Kwargs};
use serde::Serialize;
use serde_json::Value as Json;

use super::Tokenizer;
use crate::{
    corpus::{Node, Render, Speakers, without_thinking},
    input::read_beside,
};

/// Instructions of the template engine for one chat. Published templates take some hundred a message; one that loops
/// for ever is stopped.
const MAX_STEPS: u64 = 10_000_000;

/// A compiled chat template.
pub struct ChatTemplate {
    environment: Environment<'static>,
    bos: String,
    eos: String,
    added: Vec<String>,
}

/// The chat template of the model folder that the tokenizer lies in; `None` if it has none.
///
/// # Errors
/// The template is there and cannot be read or compiled.
pub fn chat_template(tokenizer: &Tokenizer) -> Result<Option<ChatTemplate>> {
    let folder = tokenizer.path().parent().unwrap_or(Path::new("."));
    let config: Json = match read_beside(folder, "tokenizer_config.json")? {
        Some(bytes) => serde_json::from_slice(&bytes).context("`tokenizer_config.json` is not JSON")?,
        None => Json::Null,
    };
    let template = match read_beside(folder, "chat_template.jinja")? {
        Some(bytes) => Some(String::from_utf8(bytes).context("`chat_template.jinja` is not UTF-8")?),
        None => template_of(&config),
    };
    let added = tokenizer.added().map(|(_, token)| token.content.clone()).collect();
    template.map(|template| ChatTemplate::new(template, &config, added)).transpose()
}

/// One template, or the one named `default` of several.
fn template_of(config: &Json) -> Option<String> {
    match config.get("chat_template")? {
        Json::String(template) => Some(template.clone()),
        Json::Array(named) => {
            let named = named.iter().find(|entry| entry.get("name").and_then(Json::as_str) == Some("default"))?;
            named.get("template").and_then(Json::as_str).map(str::to_owned)
        }
        _ => None,
    }
}

impl ChatTemplate {
    fn new(template: String, config: &Json, added: Vec<String>) -> Result<Self> {
        let mut environment = Environment::new();
        // As transformers sets up Jinja.
        environment.set_trim_blocks(true);
        environment.set_lstrip_blocks(true);
        environment.set_fuel(Some(MAX_STEPS));
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_filter("tojson", tojson);
        environment.add_function("raise_exception", |message: String| -> Result<Value, minijinja::Error> {
            Err(minijinja::Error::new(ErrorKind::InvalidOperation, message))
        });
        // The marks of the assistant's turns print nothing; minijinja does not know them.
        let template = ["generation", "endgeneration"].iter().fold(template, |template, tag| {
            ["{% TAG %}", "{%- TAG %}", "{% TAG -%}", "{%- TAG -%}"]
                .iter()
                .fold(template, |template, form| template.replace(&form.replace("TAG", tag), ""))
        });
        environment.add_template_owned("chat", template).context("the chat template cannot be compiled")?;
        let token = |name: &str| {
            let token = config.get(name);
            let content = token.and_then(|t| t.as_str().or_else(|| t.get("content")?.as_str()));
            content.unwrap_or_default().to_owned()
        };
        Ok(Self { environment, bos: token("bos_token"), eos: token("eos_token"), added })
    }

    /// Renders whole chats ([`Speakers::All`]) or what the assistant writes in them.
    pub fn renderer(self, speakers: Speakers, thinking: bool) -> Arc<Render> {
        Arc::new(move |messages| match messages {
            Node::List(messages) if speakers == Speakers::All => Ok(vec![self.render(messages, false)?]),
            Node::List(messages) => self.responses(messages, thinking),
            _ => bail!("the messages are no list"),
        })
    }

    fn render(&self, messages: &[Node<'_>], add_generation_prompt: bool) -> Result<String> {
        let messages = messages.iter().map(with_role).collect::<Vec<_>>();
        let variables = context! {
            messages => Value::from_serialize(&messages),
            add_generation_prompt, bos_token => self.bos, eos_token => self.eos, tools => Value::from(()),
        };
        self.environment.get_template("chat")?.render(variables).map_err(|error| anyhow!("{error}"))
    }

    /// What the model writes in each assistant turn: reasoning, content, calls, and the token that ends the turn.
    fn responses(&self, messages: &[Node<'_>], thinking: bool) -> Result<Vec<String>> {
        let mut responses = Vec::new();
        for (i, message) in messages.iter().enumerate() {
            if with_role(message).get("role").and_then(Node::as_text) != Some("assistant") {
                continue;
            }
            let (prompt, whole) = (self.render(&messages[..i], true)?, self.render(&messages[..=i], false)?);
            // A prompt that opens the reasoning may say more than the template repeats for a turn without any.
            let n_same = prompt.bytes().zip(whole.bytes()).take_while(|(a, b)| a == b).count();
            let start = (0..=n_same).rev().find(|at| whole.is_char_boundary(*at)).unwrap_or(0);
            let response = whole[start..].trim_end_matches(['\r', '\n']);
            // A line end behind the last token of the turn is the template's, not the model's.
            let is_closed = self.added.iter().any(|token| response.ends_with(token.as_str()));
            let response = if is_closed { response } else { &whole[start..] };
            responses.push(if thinking { response.to_owned() } else { without_thinking(response).into_owned() });
        }
        Ok(responses)
    }
}

/// The message in the words of templates, as vLLM gives it to them: ShareGPT's `from` and `value` become `role` and
/// `content`, a missing content is empty, and the arguments of a call are an object, not its JSON.
fn with_role<'a>(message: &Node<'a>) -> Node<'a> {
    let Node::Object(members) = message else { return message.clone() };
    let rename = |(key, node): &(Cow<'a, str>, Node<'a>)| {
        let text = |key: &'static str, text: &'static str| (key.into(), Node::Text(text.into()));
        match (key.as_ref(), node) {
            ("from" | "role", Node::Text(name)) if matches!(name.as_ref(), "human" | "user") => text("role", "user"),
            ("from" | "role", Node::Text(name)) if matches!(name.as_ref(), "gpt" | "model" | "bot" | "assistant") => {
                text("role", "assistant")
            }
            ("from", Node::Text(_)) => ("role".into(), node.clone()),
            ("value", _) => ("content".into(), node.clone()),
            ("content", Node::Null) => text("content", ""),
            ("reasoning", Node::Text(_)) => ("reasoning_content".into(), node.clone()),
            ("tool_calls", Node::List(calls)) => (key.clone(), Node::List(calls.iter().map(with_arguments).collect())),
            _ => (key.clone(), node.clone()),
        }
    };
    Node::Object(members.iter().map(rename).collect())
}

/// A call, or its `function`, whose arguments are no string of JSON any more.
fn with_arguments<'a>(call: &Node<'a>) -> Node<'a> {
    let Node::Object(members) = call else { return call.clone() };
    let parse = |(key, node): &(Cow<'a, str>, Node<'a>)| {
        let parsed = match (key.as_ref(), node) {
            ("function", _) => Some(with_arguments(node)),
            ("arguments", Node::Text(json)) => serde_json::from_str::<Node<'_>>(json).ok().map(Node::into_owned),
            _ => None,
        };
        (key.clone(), parsed.unwrap_or_else(|| node.clone()))
    };
    Node::Object(members.iter().map(parse).collect())
}

/// JSON as transformers gives it to templates: Python's spaces, nothing escaped that JSON does not escape.
fn tojson(value: &Value, options: Kwargs) -> Result<String, minijinja::Error> {
    let indent = options.get::<Option<usize>>("indent")?.map(|n| " ".repeat(n));
    let mut bytes = Vec::new();
    let written = match &indent {
        Some(indent) => {
            let format = serde_json::ser::PrettyFormatter::with_indent(indent.as_bytes());
            value.serialize(&mut serde_json::Serializer::with_formatter(&mut bytes, format))
        }
        None => value.serialize(&mut serde_json::Serializer::with_formatter(&mut bytes, Spaced)),
    };
    let say = |error: String| minijinja::Error::new(ErrorKind::BadSerialization, error);
    written.map_err(|error| say(error.to_string()))?;
    String::from_utf8(bytes).map_err(|error| say(error.to_string()))
}

/// A space behind each comma and colon.
struct Spaced;

impl serde_json::ser::Formatter for Spaced {
    fn begin_array_value<W: Write + ?Sized>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { out.write_all(b", ") }
    }

    fn begin_object_key<W: Write + ?Sized>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { out.write_all(b", ") }
    }

    fn begin_object_value<W: Write + ?Sized>(&mut self, out: &mut W) -> io::Result<()> {
        out.write_all(b": ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEMPLATE: &str = "{% for m in messages %}{{ '<s>' + m.role + '\\n' + m.content.strip() + '<e>\\n' }}{% endfor %}\
                            {% if add_generation_prompt %}{{ '<s>assistant\\n' }}{% endif %}";

    fn rendered(speakers: Speakers, messages: &str) -> Vec<String> {
        let added = vec!["<s>".to_owned(), "<e>".to_owned()];
        let template = ChatTemplate::new(TEMPLATE.to_owned(), &Json::Null, added).unwrap();
        template.renderer(speakers, true)(&serde_json::from_str(messages).unwrap()).unwrap()
    }

    #[test]
    fn a_template_that_never_ends_is_stopped() {
        let endless = "{% for a in range(9999) %}{% for b in range(9999) %}{% for c in range(9999) %}{% endfor %}{% endfor %}{% endfor %}";
        let template = ChatTemplate::new(endless.to_owned(), &Json::Null, Vec::new()).unwrap();
        let error = template.renderer(Speakers::All, true)(&Node::List(Vec::new())).unwrap_err();
        assert!(error.to_string().contains("fuel"), "{error}");
    }

    #[test]
    fn json_is_written_as_transformers_does() {
        let template = "{{ m|tojson }}\n{{ m|tojson(indent=2) }}\n{{ []|tojson }}";
        let template = ChatTemplate::new(template.to_owned(), &Json::Null, Vec::new()).unwrap();
        let m: Node<'_> = serde_json::from_str(r#"{"b": ["<é>", 1.0, null], "a": {}}"#).unwrap();
        let rendered =
            template.environment.get_template("chat").unwrap().render(context! { m => Value::from_serialize(&m) });
        // json.dumps(..., ensure_ascii=False), keys as they were.
        let expected = "{\"b\": [\"<é>\", 1.0, null], \"a\": {}}\n{\n  \"b\": [\n    \"<é>\",\n    1.0,\n    null\n  ],\n  \"a\": {}\n}\n[]";
        assert_eq!(rendered.unwrap(), expected);
    }

    #[test]
    fn the_responses_are_what_the_prompt_lacks() {
        let chat = r#"[{"from": "human", "value": "q"}, {"from": "gpt", "value": " r "}, {"role": "user", "content": "s"},
                       {"role": "assistant", "content": "t"}]"#;
        assert_eq!(rendered(Speakers::Assistant, chat), ["r<e>", "t<e>"]);
        assert_eq!(
            rendered(Speakers::All, chat),
            ["<s>user\nq<e>\n<s>assistant\nr<e>\n<s>user\ns<e>\n<s>assistant\nt<e>\n"]
        );
    }
}
