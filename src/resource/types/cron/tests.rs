//! The lines in the file, invalid properties, and the decision table of `cron`.

use serde_json::json;

use super::*;

fn properties(extra: &Value) -> Properties {
    let mut all = json!({"name": "job", "command": "/bin/job"});
    all.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    serde_json::from_value(all).unwrap()
}

fn text(extra: &Value) -> String {
    let p = properties(extra);
    CronType::validate(&p).unwrap_or_else(|invalid| panic!("{extra}: {invalid}"));
    p.file_text().unwrap()
}

fn line(extra: &Value) -> String {
    text(extra).lines().last().unwrap().to_owned()
}

#[test]
fn schedules() {
    for (extra, when) in [
        (json!({"minute": 5}), "5 * * * *"),
        (json!({"minute": "*"}), "* * * * *"),
        (
            json!({"minute": "*/15", "hour": "8-18/2", "day": "1,15", "month": "1-3,7", "weekday": "0,7"}),
            "*/15 8-18/2 1,15 1-3,7 0,7",
        ),
        (json!({"minute": "05", "month": "JAN,mar-may", "weekday": "mon-fri"}), "5 * * 1,3-5 1-5"),
        (json!({"minute": 0, "weekday": "fri-sun"}), "0 * * * 5-7"),
        (json!({"minute": 0, "weekday": "sun-tue"}), "0 * * * 0-2"),
        (json!({"minute": 0, "weekday": "6-0"}), "0 * * * 6-7"),
        (json!({"schedule": "@daily"}), "@daily"),
        (json!({"schedule": "@Reboot"}), "@reboot"),
        (json!({"schedule": "0  3\t* * sat"}), "0 3 * * 6"),
    ] {
        assert_eq!(line(&extra), format!("{when} root /bin/job"));
    }
    for extra in [
        json!({}),
        json!({"hour": 3}),
        json!({"minute": 60}),
        json!({"minute": -1}),
        json!({"minute": "+1"}),
        json!({"minute": "*/0"}),
        json!({"minute": "*/60"}),
        json!({"minute": "5/10"}),
        json!({"minute": "1,"}),
        json!({"minute": "1-"}),
        json!({"minute": "9-5"}),
        json!({"minute": "1 2"}),
        json!({"minute": "0\n* * * * * root id"}),
        json!({"minute": "**"}),
        json!({"minute": "~"}),
        json!({"minute": 0, "hour": 24}),
        json!({"minute": 0, "day": 0}),
        json!({"minute": 0, "month": 13}),
        json!({"minute": 0, "month": "janu"}),
        json!({"minute": 0, "weekday": 8}),
        json!({"minute": 0, "weekday": "jan"}),
        json!({"minute": 0, "schedule": "@daily"}),
        json!({"schedule": "@fortnightly"}),
        json!({"schedule": "0 3 * *"}),
        json!({"schedule": "0 3 * * * root"}),
        json!({"schedule": " "}),
    ] {
        assert!(CronType::validate(&properties(&extra)).is_err(), "{extra}");
    }
}

#[test]
fn lines_have_the_schedule_and_command() {
    let at = |extra: Value| {
        let mut all = json!({"minute": 0});
        all.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        all
    };
    assert_eq!(line(&at(json!({"user": "www-data"}))), "0 * * * * www-data /bin/job");
    assert_eq!(line(&at(json!({"command": " date +%F "}))), "0 * * * * root date +\\%F");
    assert_eq!(line(&at(json!({"command": r"a \\% b"}))), r"0 * * * * root a \\\% b");
    assert_eq!(
        text(&at(json!({"environment": ["MAILTO=", "A=x y#=", "B=say \"x\""]}))),
        format!("{HEADER}MAILTO=\"\"\nA=\"x y#=\"\nB='say \"x\"'\n0 * * * * root /bin/job\n")
    );
    for extra in [
        json!({"command": ""}),
        json!({"command": " \t"}),
        json!({"command": "a\nb"}),
        json!({"command": r"date +\%F"}),
        json!({"command": "x".repeat(999)}),
        json!({"command": "%".repeat(500)}),
        json!({"user": "a b"}),
        json!({"user": "-x"}),
        json!({"user": "a\n* * * * * root id"}),
        json!({"environment": ["X"]}),
        json!({"environment": ["=x"]}),
        json!({"environment": ["X Y=x"]}),
        json!({"environment": ["1=x"]}),
        json!({"environment": ["LOGNAME=x"]}),
        json!({"environment": ["X=a\nb"]}),
        json!({"environment": ["X=\"'"]}),
        json!({"name": "job.sh"}),
        json!({"name": "../job"}),
        json!({"name": ""}),
    ] {
        assert!(CronType::validate(&properties(&at(extra.clone()))).is_err(), "{extra}");
    }
    let refused = CronType::validate(&properties(&at(json!({"environment": ["SECRET=\"'hunter2"]})))).unwrap_err();
    assert!(!refused.message.contains("hunter2"), "{refused}");
}

/// The decision table: properties, the file, the steps.
#[test]
fn decisions() {
    let right = format!("{HEADER}0 3 * * * root /bin/job\n");
    let daily = json!({"minute": 0, "hour": 3});
    let found = |text: &str, sound| CronState {
        file: Some(OwnedFile { text: text.to_owned(), has_right_attributes: sound, is_public: true }),
        ..CronState::default()
    };
    for (extra, state, wanted) in [
        (daily.clone(), CronState::default(), vec!["created the entry"]),
        (daily.clone(), found(&right, true), vec![]),
        (daily.clone(), found(&right, false), vec!["owner or mode of the file"]),
        (daily.clone(), found("", false), vec!["schedule 0 3 * * *", "user root", "command /bin/job"]),
        (daily.clone(), found("0 3 * * * root /bin/job", true), vec!["the form of the file"]),
        (
            daily.clone(),
            found("MAILTO=x\n@daily www /bin/old\n", true),
            vec!["schedule @daily → 0 3 * * *", "user www → root", "command /bin/old → /bin/job", "environment"],
        ),
        (json!({"ensure": "absent"}), found(&right, true), vec!["removed the entry"]),
        (json!({"ensure": "absent"}), CronState::default(), vec![]),
    ] {
        let p = properties(&extra);
        CronType::validate(&p).unwrap();
        let changes = CronType::diff(&p, &state).unwrap();
        assert_eq!(changes.iter().flat_map(Change::details).collect::<Vec<_>>(), wanted, "{extra} {state:?}");
    }
}

#[test]
fn values_of_variables_are_not_shown() {
    let p = properties(&json!({"minute": 0, "environment": ["TOKEN=hunter2"]}));
    let file = OwnedFile { text: "TOKEN = hunter1\n0 * * * * root x\n".to_owned(), has_right_attributes: true, is_public: true };
    let state = CronState { file: Some(file), ..CronState::default() };
    let preview = CronType::preview(&p, &state, &Host::system(None)).unwrap();
    let changes = CronType::diff(&p, &state).unwrap();
    for shown in [CronType::redacted(&p).to_string(), preview.before.clone(), preview.after, format!("{changes:?}")] {
        assert!(!shown.contains("hunter"), "{shown}");
    }
    assert_eq!(preview.before, "TOKEN=***\n0 * * * * root x\n");
}

#[test]
fn entries_that_only_root_may_read_are_not_shown() {
    let root = tempfile::TempDir::new().unwrap();
    let host = Host::system(None).with_root(root.path());
    let file = root.path().join("etc/cron.d/job");
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    std::fs::write(&file, "0 3 * * * hunter2 /bin/old --password hunter2\n").unwrap();
    for (mode, shown) in [(0o600, false), (0o644, true)] {
        std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
        let p = properties(&json!({"minute": 0}));
        let state = CronType::observe(&p, &(), &host).unwrap();
        let changes = CronType::diff(&p, &state).unwrap();
        let text = format!("{} {changes:?}", serde_json::to_string(&state).unwrap());
        assert_eq!(text.contains("hunter2"), shown, "{text}");
    }
}
