//! iproute2's `rdma` command (rdma-link(8), rdma-dev(8), rdma-statistic(8), rdma-resource(8)) for
//! programs that run on Verbena: what it shows of devices, links, counters and objects is
//! Verbena's, in iproute2's words. Everything else goes to the system's command.

mod resource;

use std::borrow::Cow;
use std::env;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use nic::DeviceConfig;
use nic::device::Port;
use nic::device::port::{CAPABILITIES, FIRMWARE, PhysState, PortState};
use serde_json::{Map, Value};
use wire::Guid;

use crate::{devices, output, sysfs};
use resource::Kind;

/// The names of the bits of [`CAPABILITIES`], as rdma-link(8) prints them.
const CAPABILITY_NAMES: [(u32, &str); 2] = [(1 << 16, "CM"), (1 << 26, "IP_BASED_GIDS")];

/// Answers, or becomes the system's command.
pub(crate) fn run(args: Vec<OsString>) -> ExitCode {
    let Some(question) = Question::parse(&args) else { return pass_on(&args) };
    let devices = match devices::survey() {
        Ok(devices) => devices,
        Err(message) => {
            eprintln!("rdma: {message}");
            return ExitCode::FAILURE;
        }
    };
    let Some(devices) = question.chosen(&devices) else {
        eprintln!("Wrong device name.");
        return ExitCode::FAILURE;
    };
    question.answer(&devices).and_then(output::write).unwrap_or_else(|message| {
        eprintln!("rdma: {message}");
        ExitCode::FAILURE
    })
}

/// Becomes the next command of that name in PATH.
fn pass_on(args: &[OsString]) -> ExitCode {
    let own = env::current_exe().and_then(fs::canonicalize).ok();
    let path = env::var_os("PATH").unwrap_or_default();
    let others = env::split_paths(&path)
        .map(|dir| dir.join("rdma"))
        .filter(|file| fs::canonicalize(file).is_ok_and(|real| Some(real) != own));
    for other in others.collect::<Vec<PathBuf>>() {
        let error = Command::new(&other).args(args).exec();
        eprintln!("rdma: cannot run {}: {error}", other.display());
    }
    eprintln!(
        "rdma: here only what `dev`, `link`, `resource` and `statistic` show is answered; for the rest install \
         iproute2's command"
    );
    ExitCode::FAILURE
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Object {
    Device,
    Link,
    Statistic,
    Resource(Kind),
}

/// What is asked, and how it is to be answered.
#[derive(Debug, PartialEq, Eq)]
struct Question {
    object: Object,
    /// One device, by name.
    name: Option<String>,
    json: bool,
    pretty: bool,
    details: bool,
}

impl Question {
    /// Options may stand anywhere, words may be shortened; `None` for what is not answered here.
    fn parse(args: &[OsString]) -> Option<Self> {
        let (mut words, mut json, mut pretty, mut details) = (Vec::new(), false, false, false);
        for arg in args {
            match arg.to_str()? {
                "--json" => json = true,
                "--pretty" => pretty = true,
                "--details" => details = true,
                long if long.starts_with("--") => return None,
                short if short.starts_with('-') => {
                    for letter in short.chars().skip(1) {
                        match letter {
                            'j' => json = true,
                            'p' => pretty = true,
                            'd' => details = true,
                            _ => return None,
                        }
                    }
                }
                word => words.push(word),
            }
        }
        let (object, rest) = words.split_first()?;
        let is = |word: &str, full: &str| !word.is_empty() && full.starts_with(word);
        let object = match *object {
            word if is(word, "dev") => Object::Device,
            word if is(word, "link") => Object::Link,
            word if is(word, "resource") => Object::Resource(Kind::Summary),
            // `s` is `system`.
            word if is(word, "statistic") && word.len() > 1 => Object::Statistic,
            _ => return None,
        };
        let rest = match rest {
            [verb, rest @ ..] if is(verb, "show") || is(verb, "list") => rest,
            [] => rest,
            _ => return None,
        };
        let (object, rest) = match (object, rest) {
            (Object::Resource(_), all @ [word, rest @ ..]) => {
                match Kind::NAMED.into_iter().find(|(name, _)| name == word) {
                    Some((_, kind)) => (Object::Resource(kind), rest),
                    None => (object, all),
                }
            }
            _ => (object, rest),
        };
        let name = match (object, rest) {
            (_, []) => None,
            // What other objects there are iproute2's command knows.
            (Object::Resource(_), ["srq" | "ctx"]) => return None,
            (Object::Device | Object::Link | Object::Resource(Kind::Summary), [name]) => Some(*name),
            (Object::Statistic | Object::Resource(_), [word, name]) if is(word, "link") => Some(*name),
            (Object::Statistic, [word]) if is(word, "link") => None,
            _ => return None,
        };
        Some(Self { object, name: name.map(str::to_owned), json, pretty, details })
    }

    /// The devices it asks about; `None` where the one it names does not exist.
    fn chosen<'a>(&self, devices: &'a [(DeviceConfig, Port)]) -> Option<Vec<&'a (DeviceConfig, Port)>> {
        let Some(name) = &self.name else { return Some(devices.iter().collect()) };
        let name = match self.object {
            Object::Device => name,
            // DEV/PORT; there is one port.
            _ => name.strip_suffix("/1").or_else(|| name.strip_suffix("/-")).unwrap_or(name),
        };
        devices.iter().find(|(config, _)| config.name == name).map(|device| vec![device])
    }

    fn answer(&self, devices: &[&(DeviceConfig, Port)]) -> Result<String, String> {
        let told = self.told(devices)?;
        if self.json {
            let all: Value = told.into_iter().collect();
            return Ok(if self.pretty { format!("{all:#}\n") } else { format!("{all}\n") });
        }
        let line = |fields: &Fields| match self.object {
            Object::Device | Object::Resource(Kind::Summary) => device_line(fields),
            Object::Resource(_) if !fields.contains_key("port") => object_line(fields),
            _ => link_line(fields, self.details),
        };
        Ok(told.iter().map(line).collect())
    }

    /// What is told, a line each.
    fn told(&self, devices: &[&(DeviceConfig, Port)]) -> Result<Vec<Fields>, String> {
        let each = devices.iter();
        match self.object {
            Object::Device => Ok(each.map(|(config, _)| device_fields(config)).collect()),
            Object::Link => Ok(each.map(|(config, port)| link_fields(config, port, self.details)).collect()),
            Object::Statistic => {
                let said: Vec<_> = each.filter_map(|(config, _)| resource::statistic(config)).collect();
                match said.is_empty() && !devices.is_empty() {
                    true => {
                        Err("there are no counters: this machine permits no view of /sys (verbena doctor)"
                            .into())
                    }
                    false => Ok(said),
                }
            }
            Object::Resource(kind) => {
                let configs: Vec<_> = each.map(|(config, _)| config).collect();
                let processes = resource::processes(&configs);
                Ok(configs.iter().flat_map(|config| resource::of_device(kind, config, &processes)).collect())
            }
        }
    }
}

/// What is told of a device or a link, in iproute2's order.
type Fields = Map<String, Value>;

fn fields<const N: usize>(fields: [(&str, Value); N]) -> Fields {
    fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

fn link_fields(config: &DeviceConfig, port: &Port, details: bool) -> Fields {
    let state = match port.state() {
        PortState::Down => "DOWN",
        PortState::Init => "INIT",
        PortState::Armed => "ARMED",
        PortState::Active => "ACTIVE",
    };
    let phys = match port.phys_state() {
        PhysState::Sleep => "SLEEP",
        PhysState::Polling => "POLLING",
        PhysState::Disabled => "DISABLED",
        PhysState::Training => "PORT_CONFIGURATION_TRAINING",
        PhysState::LinkUp => "LINK_UP",
        PhysState::LinkErrorRecovery => "LINK_ERROR_RECOVERY",
    };
    let mut told = fields([
        ("ifindex", config.interface.into()),
        ("ifname", config.name.as_str().into()),
        ("port", 1.into()),
    ]);
    if let Some(ib) = &port.ib {
        told.extend(fields([
            ("subnet_prefix", sysfs::guid(Guid(ib.subnet_prefix)).into()),
            ("lid", ib.lid.into()),
            ("sm_lid", ib.sm_lid.into()),
            ("lmc", ib.lmc.into()),
        ]));
    }
    told.extend(fields([("state", state.into()), ("physical_state", phys.into())]));
    // Nothing carries IP over a port of InfiniBand here.
    if port.ib.is_none() {
        told.extend(fields([
            ("netdev", config.interface_name.as_str().into()),
            ("netdev_index", config.interface.into()),
        ]));
    }
    if details {
        let names = CAPABILITY_NAMES.iter().filter(|(bit, _)| CAPABILITIES & bit != 0).map(|(_, name)| *name);
        told.insert("caps".to_owned(), names.collect());
    }
    told
}

fn device_fields(config: &DeviceConfig) -> Fields {
    fields([
        ("ifindex", config.interface.into()),
        ("ifname", config.name.as_str().into()),
        ("node_type", "ca".into()),
        ("fw", FIRMWARE.into()),
        ("node_guid", sysfs::guid(config.guid).into()),
        ("sys_image_guid", sysfs::guid(config.guid).into()),
    ])
}

/// `link rxe_lo/1 state ACTIVE physical_state LINK_UP netdev lo `.
fn link_line(fields: &Fields, details: bool) -> String {
    let mut line = String::from("link ");
    for (name, value) in fields {
        match (name.as_str(), value) {
            ("ifindex", _) => {}
            ("netdev_index", _) if !details => {}
            ("ifname", value) => _ = write!(line, "{}/", plain(value)),
            ("port", value) => _ = write!(line, "{} ", plain(value)),
            (name, Value::Array(values)) => {
                let values: Vec<_> = values.iter().map(plain).collect();
                _ = write!(line, "\n    {name}: <{}>", values.join(", "));
            }
            (name, value) => _ = write!(line, "{name} {} ", plain(value)),
        }
    }
    line + "\n"
}

/// `1: rxe_lo: node_type ca fw 0.1.0 node_guid ... `.
fn device_line(fields: &Fields) -> String {
    let mut line = String::new();
    for (name, value) in fields {
        match name.as_str() {
            "ifindex" | "ifname" => _ = write!(line, "{}: ", plain(value)),
            name => _ = write!(line, "{name} {} ", plain(value)),
        }
    }
    line + "\n"
}

/// `dev rxe_lo cqn 0 cqe 32 `.
fn object_line(fields: &Fields) -> String {
    let mut line = String::new();
    for (name, value) in fields {
        match name.as_str() {
            "ifindex" => {}
            "ifname" => _ = write!(line, "dev {} ", plain(value)),
            name => _ = write!(line, "{name} {} ", plain(value)),
        }
    }
    line + "\n"
}

/// A value as it stands in a line: text without quotes.
fn plain(value: &Value) -> Cow<'_, str> {
    value.as_str().map_or_else(|| value.to_string().into(), Cow::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(line: &str) -> Option<Question> {
        Question::parse(&line.split_whitespace().map(OsString::from).collect::<Vec<_>>())
    }

    fn devices() -> Vec<(DeviceConfig, Port)> {
        let config = DeviceConfig {
            id: nic::DeviceId(0),
            name: "rxe_lo".to_owned(),
            transport: nic::Transport::Roce,
            guid: Guid(0x0256_1012_3456_789a),
            interface: 1,
            interface_name: "lo".to_owned(),
            mac: [0; 6],
        };
        let gids = nic::GidTable::default();
        vec![(config, Port { up: true, mtu: wire::Mtu::M4096, speed_mbps: None, gids, ib: None })]
    }

    fn answer(line: &str) -> String {
        let (question, devices) = (ask(line).unwrap(), devices());
        question.answer(&question.chosen(&devices).unwrap()).unwrap()
    }

    #[test]
    fn links_and_devices_are_told_in_the_words_of_iproute2() {
        assert_eq!(
            answer("link show -j"),
            "[{\"ifindex\":1,\"ifname\":\"rxe_lo\",\"port\":1,\"state\":\"ACTIVE\",\"physical_state\":\"LINK_UP\",\
             \"netdev\":\"lo\",\"netdev_index\":1}]\n"
        );
        assert_eq!(
            answer("link show rxe_lo/1"),
            "link rxe_lo/1 state ACTIVE physical_state LINK_UP netdev lo \n"
        );
        assert_eq!(
            answer("dev"),
            format!(
                "1: rxe_lo: node_type ca fw {FIRMWARE} node_guid 0256:1012:3456:789a sys_image_guid \
                 0256:1012:3456:789a \n"
            )
        );
    }

    #[test]
    fn options_may_stand_anywhere_and_words_may_be_shortened() {
        assert_eq!(ask("-jp link"), ask("l --json sh --pretty"));
        assert!(ask("-d dev list").is_some_and(|q| q.details && q.object == Object::Device));
    }

    #[test]
    fn what_is_not_answered_goes_to_the_systems_command() {
        for line in [
            "",
            "resource show srq",
            "link add rxe0 type rxe netdev lo",
            "-V",
            "--batch f link",
            "statistic qp show",
            "system",
            "s",
        ] {
            assert_eq!(ask(line), None, "{line}");
        }
    }

    #[test]
    fn objects_and_counters_are_asked_for_in_the_words_of_iproute2() {
        let asked = |line| ask(line).map(|question| (question.object, question.name));
        let all = |object| Some((object, None));
        let of = |object, name: &str| Some((object, Some(name.to_owned())));
        let resource = Object::Resource;
        assert_eq!(asked("resource"), all(resource(Kind::Summary)));
        assert_eq!(asked("res show rxe_lo"), of(resource(Kind::Summary), "rxe_lo"));
        assert_eq!(asked("resource show qp"), all(resource(Kind::Qp)));
        assert_eq!(asked("-j res show cm_id link rxe_lo/1"), of(resource(Kind::CmId), "rxe_lo/1"));
        assert_eq!(asked("statistic"), all(Object::Statistic));
        assert_eq!(asked("stat show link"), all(Object::Statistic));
        assert_eq!(asked("statistic show link rxe_lo/1"), of(Object::Statistic, "rxe_lo/1"));
    }

    #[test]
    fn a_device_that_does_not_exist_is_not_answered_with_all() {
        assert!(ask("link show rxe9/1").unwrap().chosen(&devices()).is_none());
    }

    #[test]
    fn a_name_with_quotes_stays_one_string() {
        let mut devices = devices();
        devices[0].0.name = "a\"b\\c\n".to_owned();
        let question = ask("dev -j").unwrap();
        let answer = question.answer(&question.chosen(&devices).unwrap()).unwrap();
        assert!(answer.contains(r#""ifname":"a\"b\\c\n","#), "{answer}");
    }

    #[test]
    fn a_pretty_answer_says_the_same() {
        let (pretty, plain) = (answer("link -jpd"), answer("link -jd"));
        assert_ne!(pretty, plain);
        let same = |text: &str| serde_json::from_str::<Value>(text).unwrap();
        assert_eq!(same(&pretty), same(&plain));
        assert_eq!(same(&plain)[0]["caps"][0], "CM");
    }
}
