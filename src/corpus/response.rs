//! What a model put out, in the logs of its server: the responses of a JSON record, each as one chat message.
//!
//! Read are `choices` (chat completions and completions of OpenAI and vLLM), `output` (OpenAI's Responses) and `outputs`
//! (vLLM's own `RequestOutput`); each alone, in `response`, or in the `response.body` of a batch.

use std::borrow::Cow;

use super::node::Node;

/// One response.
#[derive(Debug, Clone)]
pub struct Response<'n, 'a> {
    /// What it says: a chat message, or an object with a `text`.
    pub message: Cow<'n, Node<'a>>,
    /// The ids of its tokens, where the server logged them (vLLM's `return_token_ids`).
    pub token_ids: Option<&'n Node<'a>>,
}

/// The responses of a record; `None` when it is no log.
pub fn responses<'n, 'a>(record: &'n Node<'a>) -> Option<Vec<Response<'n, 'a>>> {
    let response = record.get("response");
    let bodies = [Some(record), response, response.and_then(|r| r.get("body"))];
    bodies.into_iter().flatten().find_map(|body| {
        let whole = |name, members: &[&str]| match body.get(name) {
            Some(Node::List(items)) if !items.is_empty() => {
                let is_one = |item: &Node<'_>| members.iter().any(|member| item.get(member).is_some());
                items.iter().all(is_one).then_some(items.as_slice())
            }
            _ => None,
        };
        let each = |items: &'n [Node<'a>]| items.iter().map(one).collect();
        (whole("choices", &["message", "text", "token_ids"]).map(each))
            .or_else(|| whole("outputs", &["text", "token_ids"]).map(each))
            .or_else(|| {
                Some(vec![Response { message: Cow::Owned(joined(whole("output", &["type"])?)), token_ids: None }])
            })
    })
}

fn one<'n, 'a>(item: &'n Node<'a>) -> Response<'n, 'a> {
    Response { message: Cow::Borrowed(item.get("message").unwrap_or(item)), token_ids: item.get("token_ids") }
}

/// The items of one response of OpenAI's Responses (reasoning, texts, calls) as the chat message that they are.
fn joined<'a>(items: &[Node<'a>]) -> Node<'a> {
    let (mut reasoning, mut content, mut calls) = (String::new(), String::new(), Vec::new());
    for item in items {
        let texts = item.get("content").map_or_else(Vec::new, texts_of).concat();
        match item.get("type").and_then(Node::as_text) {
            Some("reasoning") => reasoning += &texts,
            Some("message") => content += &texts,
            Some("function_call") => calls.push(Node::Object(vec![("function".into(), item.clone())])),
            _ => {} // a tool of the server's own: its words are not the model's
        }
    }
    let text = |text: String| Node::Text(Cow::Owned(text));
    let mut message = vec![("role".into(), Node::Text("assistant".into())), ("content".into(), text(content))];
    if !reasoning.is_empty() {
        message.push(("reasoning_content".into(), text(reasoning)));
    }
    if !calls.is_empty() {
        message.push(("tool_calls".into(), Node::List(calls)));
    }
    Node::Object(message)
}

/// The texts of a content: one string, or parts with a `text`.
pub(super) fn texts_of<'n>(content: &'n Node<'_>) -> Vec<&'n str> {
    match content {
        Node::Text(text) => vec![text],
        Node::List(parts) => {
            parts.iter().filter_map(|part| part.as_text().or_else(|| part.get("text")?.as_text())).collect()
        }
        _ => Vec::new(),
    }
}

/// Names and arguments of the tools that a message calls.
pub(super) fn calls_of<'n>(message: &'n Node<'_>) -> Vec<Cow<'n, str>> {
    let mut texts = Vec::new();
    let calls = match message.get("tool_calls") {
        Some(Node::List(calls)) => calls.as_slice(),
        _ => &[],
    };
    let functions = calls.iter().map(|call| call.get("function").unwrap_or(call)).chain(message.get("function_call"));
    for function in functions {
        texts.extend(function.get("name").and_then(Node::as_text).map(Cow::Borrowed));
        texts.extend(match function.get("arguments") {
            Some(Node::Text(text)) => Some(Cow::Borrowed(text.as_ref())),
            Some(arguments @ Node::Object(_)) => serde_json::to_string(arguments).ok().map(Cow::Owned),
            _ => None,
        });
    }
    texts
}
