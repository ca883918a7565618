//! Keyword arguments: sizes, times, and the settings of an index.

use crate::failure::Failure;
use farindex::size::parse_count;
use farindex::{IndexConfig, KINDS};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyFloat, PyInt, PyString};
use serde_json::Value;
use std::time::Duration;

/// A number of bytes: an integer, or text such as `"1GiB"`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Size(pub(crate) u64);

impl<'py> FromPyObject<'_, 'py> for Size {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        match object.cast::<PyString>() {
            Ok(text) => Ok(Size(parse_count(&text.to_cow()?).map_err(Failure::settings)?)),
            Err(_) => Ok(Size(object.extract()?)),
        }
    }
}

/// Seconds, as Python gives times.
pub(crate) fn seconds(name: &str, seconds: Option<f64>) -> PyResult<Option<Duration>> {
    let time = |seconds| {
        Duration::try_from_secs_f64(seconds)
            .map_err(|_| Failure::settings(format!("{name}={seconds} is no number of seconds")).into())
    };
    seconds.map(time).transpose()
}

/// The number of the kind with this name, in [`KINDS`].
pub(crate) fn kind(name: &str) -> Result<&'static farindex::Kind, Failure> {
    KINDS.iter().find(|kind| kind.name == name).ok_or_else(|| {
        let known: Vec<_> = KINDS.iter().map(|kind| kind.name).collect();
        Failure::settings(format!("there is no kind {name:?}: there are {}", known.join(", ")))
    })
}

/// The settings of a kind, with those changes.
pub(crate) fn config(name: &str, changes: Option<&Bound<'_, PyDict>>) -> PyResult<IndexConfig> {
    kind(name)?;
    let usual = IndexConfig::of_kind(name).unwrap_or_default();
    let Some(changes) = changes else { return Ok(usual) };
    let mut config = usual;
    let mut all = serde_json::to_value(usual).unwrap_or_default();
    for (setting, value) in changes {
        let setting: String = setting.extract()?;
        let Some(place) = all.as_object_mut().and_then(|all| all.get_mut(&setting)).filter(|_| setting != "kind")
        else {
            let known: Vec<_> = names(&all).collect();
            let what = format!("{name} has no setting {setting:?}; it has {}", known.join(", "));
            return Err(PyTypeError::new_err(what));
        };
        *place = json(&setting, &value)?;
        // One at a time, so that the error names the right one.
        config = serde_json::from_value(all.clone())
            .map_err(|error| Failure::settings(format!("{setting}={value}: {error}")))?;
    }
    Ok(config)
}

fn names(settings: &Value) -> impl Iterator<Item = &str> {
    settings.as_object().into_iter().flat_map(|all| all.keys()).map(String::as_str).filter(|name| *name != "kind")
}

fn json(name: &str, value: &Bound<'_, PyAny>) -> PyResult<Value> {
    if value.is_instance_of::<PyBool>() {
        Ok(Value::from(value.extract::<bool>()?))
    } else if value.is_instance_of::<PyInt>() {
        Ok(Value::from(value.extract::<i64>()?))
    } else if value.is_instance_of::<PyFloat>() {
        Ok(Value::from(value.extract::<f64>()?))
    } else if value.is_instance_of::<PyString>() {
        Ok(Value::from(value.extract::<String>()?))
    } else {
        Err(PyTypeError::new_err(format!("the setting {name} is a bool, a number or a str")))
    }
}

/// Returns every kind of index: its name, whether its keys are ordered, and its settings with their defaults.
///
/// >>> import farindex
/// >>> farindex.kinds()["sherman"]["ordered"]
/// True
#[pyfunction]
pub(crate) fn kinds(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let all = PyDict::new(py);
    for kind in KINDS {
        let about = PyDict::new(py);
        about.set_item("ordered", kind.ordered)?;
        about.set_item("about", kind.about)?;
        let settings = serde_json::to_value(IndexConfig::of_kind(kind.name)).unwrap_or_default();
        about.set_item("settings", to_python(py, &settings)?)?;
        all.set_item(kind.name, about)?;
    }
    Ok(all)
}

/// A record as a dict, but for the name of a kind.
pub(crate) fn to_python<'py>(py: Python<'py>, settings: &Value) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    for name in names(settings) {
        match &settings[name] {
            Value::Bool(value) => dict.set_item(name, value)?,
            Value::String(value) => dict.set_item(name, value)?,
            Value::Number(value) => match (value.as_u64(), value.as_i64()) {
                (Some(value), _) => dict.set_item(name, value)?,
                (None, Some(value)) => dict.set_item(name, value)?,
                (None, None) => dict.set_item(name, value.as_f64())?,
            },
            Value::Array(lines) => dict.set_item(name, lines.iter().filter_map(Value::as_str).collect::<Vec<_>>())?,
            other => dict.set_item(name, other.to_string())?,
        }
    }
    Ok(dict)
}
