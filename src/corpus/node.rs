//! A JSON value that borrows its strings where it can: a corpus line is parsed once and mostly thrown away.

use std::{borrow::Cow, fmt};

use serde::{
    Deserialize, Serialize, Serializer,
    de::{Deserializer, MapAccess, SeqAccess, Visitor},
    ser::SerializeMap,
};

/// A JSON value. Objects keep the order of their keys, as chat templates print them.
#[derive(Debug, Clone, PartialEq)]
pub enum Node<'a> {
    /// `null`.
    Null,
    /// A string.
    Text(Cow<'a, str>),
    /// An array.
    List(Vec<Node<'a>>),
    /// An object; of equal keys the last one counts.
    Object(Vec<(Cow<'a, str>, Node<'a>)>),
    /// A number or a boolean.
    Scalar(serde_json::Value),
}

impl<'a> Node<'a> {
    /// The member `key` of an object.
    pub fn get(&self, key: &str) -> Option<&Node<'a>> {
        match self {
            Self::Object(members) => members.iter().rev().find(|(name, _)| name == key).map(|(_, node)| node),
            _ => None,
        }
    }

    /// The string.
    pub fn as_text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    /// The same, with its strings in its own memory.
    pub fn into_owned(self) -> Node<'static> {
        match self {
            Self::Null => Node::Null,
            Self::Text(text) => Node::Text(Cow::Owned(text.into_owned())),
            Self::List(list) => Node::List(list.into_iter().map(Node::into_owned).collect()),
            Self::Object(members) => Node::Object(
                members.into_iter().map(|(key, node)| (Cow::Owned(key.into_owned()), node.into_owned())).collect(),
            ),
            Self::Scalar(value) => Node::Scalar(value),
        }
    }

    /// What kind of value it is, for messages.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Text(_) => "a string",
            Self::List(_) => "a list",
            Self::Object(_) => "an object",
            Self::Scalar(serde_json::Value::Bool(_)) => "a boolean",
            Self::Scalar(_) => "a number",
        }
    }
}

/// A string that borrows when it has no escapes.
struct Text<'a>(Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Strings;
        impl<'de> Visitor<'de> for Strings {
            type Value = Text<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }
            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Borrowed(text)))
            }
            fn visit_str<E>(self, text: &str) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Owned(text.to_owned())))
            }
        }
        deserializer.deserialize_str(Strings)
    }
}

struct Nodes;

impl<'de> Visitor<'de> for Nodes {
    type Value = Node<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }
    fn visit_unit<E>(self) -> Result<Node<'de>, E> {
        Ok(Node::Null)
    }
    fn visit_bool<E>(self, value: bool) -> Result<Node<'de>, E> {
        Ok(Node::Scalar(value.into()))
    }
    fn visit_i64<E>(self, value: i64) -> Result<Node<'de>, E> {
        Ok(Node::Scalar(value.into()))
    }
    fn visit_u64<E>(self, value: u64) -> Result<Node<'de>, E> {
        Ok(Node::Scalar(value.into()))
    }
    fn visit_f64<E>(self, value: f64) -> Result<Node<'de>, E> {
        Ok(Node::Scalar(value.into()))
    }
    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Node<'de>, E> {
        Ok(Node::Text(Cow::Borrowed(text)))
    }
    fn visit_str<E>(self, text: &str) -> Result<Node<'de>, E> {
        Ok(Node::Text(Cow::Owned(text.to_owned())))
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Node<'de>, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element()? {
            list.push(item);
        }
        Ok(Node::List(list))
    }
    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Node<'de>, A::Error> {
        let mut object = Vec::new();
        while let Some(Text(key)) = members.next_key()? {
            object.push((key, members.next_value()?));
        }
        Ok(Node::Object(object))
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Node<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Nodes)
    }
}

impl Serialize for Node<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Null => serializer.serialize_unit(),
            Self::Text(text) => serializer.serialize_str(text),
            Self::List(list) => serializer.collect_seq(list),
            Self::Scalar(value) => value.serialize(serializer),
            Self::Object(members) => {
                let mut map = serializer.serialize_map(Some(members.len()))?;
                members.iter().try_for_each(|(key, node)| map.serialize_entry(key, node))?;
                map.end()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_strings_are_borrowed_and_escapes_are_undone() {
        let node: Node<'_> = serde_json::from_str(r#"{"a": "plain", "b": ["x\ny", null, 1.5, true]}"#).unwrap();
        assert!(matches!(node.get("a"), Some(Node::Text(Cow::Borrowed("plain")))));
        assert_eq!(serde_json::to_string(&node).unwrap(), r#"{"a":"plain","b":["x\ny",null,1.5,true]}"#);
    }
}
