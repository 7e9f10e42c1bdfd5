//! Chats as the model sees them: rendered through its own Jinja template.
//!
//! What an assistant turn adds is the difference between the chat up to it and the prompt that asks for it; it is
//! counted by itself, because that is how the model writes it: behind a prompt whose tokens are fixed already.

use std::{path::Path, sync::Arc};

use anyhow::{Context, Result, anyhow, bail};
use minijinja::{Environment, ErrorKind, Value, context};
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

/// The message in the words of templates: ShareGPT's `from` and `value` become `role` and `content`.
fn with_role<'a>(message: &Node<'a>) -> Node<'a> {
    let Node::Object(members) = message else { return message.clone() };
    let rename = |(key, node): &(std::borrow::Cow<'a, str>, Node<'a>)| {
        let role = |name: &'static str| (("role").into(), Node::Text(name.into()));
        match (key.as_ref(), node.as_text()) {
            ("from" | "role", Some("human" | "user")) => role("user"),
            ("from" | "role", Some("gpt" | "model" | "bot" | "assistant")) => role("assistant"),
            ("from", Some(_)) => ("role".into(), node.clone()),
            ("value", _) => ("content".into(), node.clone()),
            _ => (key.clone(), node.clone()),
        }
    };
    Node::Object(members.iter().map(rename).collect())
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
