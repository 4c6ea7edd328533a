//! Random manifests: resources of many types that fit together. Some manifests have one mistake.

use serde_json::{Map, Value, json};

/// A sequence of numbers from a seed: SplitMix64.
pub struct SplitMix64(u64);

impl SplitMix64 {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `end`.
    pub fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    pub fn choose<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len())]
    }

    /// True once in this many calls, on average.
    pub fn once_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }
}

/// The expectation of a manifest.
pub struct Case {
    pub manifest: Value,
    /// The mistake for which the program refuses the manifest; none for a valid one.
    pub wrong: Option<&'static str>,
    /// Resources that change something in every run.
    pub restless: Vec<String>,
    /// True when a resource fails only at the attempt.
    pub surprising: bool,
    /// True when the test compares the plan as well.
    pub planned: bool,
}

/// A resource of the manifest.
struct GeneratedResource {
    reference: String,
    kind: &'static str,
    properties: Map<String, Value>,
}

/// Makes a manifest for a directory. `app.tar.gz` on the server with this URL has the file `app/run`.
pub struct Maker<'a> {
    dice: &'a mut SplitMix64,
    root: String,
    url: String,
    owner: (u32, u32),
    made: Vec<GeneratedResource>,
    restless: Vec<String>,
    surprising: bool,
    /// Directories that exist at this point.
    directories: Vec<String>,
    /// Files that exist at this point, and that no resource manages as a whole.
    texts: Vec<String>,
}

impl<'a> Maker<'a> {
    pub fn new(dice: &'a mut SplitMix64, root: &str, url: &str) -> Self {
        let owner = (nix::unistd::geteuid().as_raw(), nix::unistd::getegid().as_raw());
        let directories = vec![root.to_owned(), format!("{root}/given")];
        let texts = vec![format!("{root}/given/text")];
        let (root, url) = (root.to_owned(), url.to_owned());
        Self { dice, root, url, owner, made: vec![], restless: vec![], surprising: false, directories, texts }
    }

    /// Makes the resources of a valid manifest, without hidden dependencies between them.
    pub fn valid_resources(mut self, most: usize) -> Vec<Value> {
        (0..=self.dice.below(most)).for_each(|_| self.resource());
        self.written()
    }

    pub fn case(mut self) -> Case {
        for _ in 0..=self.dice.below(12) {
            self.resource();
        }
        let wrong = if self.dice.once_in(4) { Some(self.add_mistake()) } else { None };
        let mut ccm = json!({"resources": self.written()});
        if self.dice.once_in(6) {
            ccm["fail_on_error"] = json!(true);
        }
        let planned = self.dice.once_in(2);
        Case {
            manifest: json!({"data": {"yes": true, "word": "{{ 1 + 1 }}"}, "ccm": ccm}),
            wrong,
            restless: self.restless,
            surprising: self.surprising,
            planned,
        }
    }

    /// The resources in order. Consecutive resources of one type sometimes share a list.
    fn written(&mut self) -> Vec<Value> {
        let mut written: Vec<Value> = Vec::new();
        for GeneratedResource { kind, mut properties, .. } in std::mem::take(&mut self.made) {
            if self.dice.once_in(2) {
                written.push(json!({ kind: properties }));
                continue;
            }
            let name = properties.remove("name").unwrap();
            let named = json!({ name.as_str().unwrap(): properties });
            match written.last_mut().and_then(|last| last.get_mut(kind)).and_then(Value::as_array_mut) {
                Some(list) => list.push(named),
                None => written.push(json!({ kind: [named] })),
            }
        }
        written
    }

    fn resource(&mut self) {
        match self.dice.below(10) {
            0 | 1 => self.file(),
            2 => self.directory(),
            3 => self.gone(),
            4 | 5 => self.line(),
            6 => self.symlink(),
            7 => self.archive(),
            _ => self.exec(),
        }
    }

    /// A name that no other resource has.
    fn fresh(&mut self, what: &str) -> String {
        format!("{what}{}", self.made.len())
    }

    /// A path in an existing directory, or, rarely, in one that never exists.
    fn path(&mut self, what: &str) -> String {
        let name = self.fresh(what);
        if self.dice.once_in(12) {
            return format!("{}/nowhere/{name}", self.root);
        }
        format!("{}/{name}", self.dice.choose(&self.directories).clone())
    }

    fn mode(&mut self) -> &'static str {
        let modes: &[&'static str] = &["0644", "644", "0600", "0755", "0o640", "u=rwx,go=rx", "u=rw,g=r"];
        self.dice.choose::<&'static str>(modes)
    }

    fn owned(&mut self, mut properties: Value) -> Value {
        properties["owner"] = json!(self.owner.0.to_string());
        properties["group"] = json!(self.owner.1);
        properties["mode"] = json!(self.mode());
        properties
    }

    fn file(&mut self) {
        let path = self.path("file");
        let content = *self.dice.choose(&["", "one\n", "two\nlines", "{{ Data.word }}\n", "umlaut ä\n", "{% raw %}\n"]);
        let what = if self.dice.once_in(5) { json!({"source": "source"}) } else { json!({ "content": content }) };
        let mut properties = self.owned(what);
        properties["ensure"] = json!("present");
        self.add("file", &path, properties);
    }

    fn directory(&mut self) {
        // A path without a parent stays missing.
        let path = format!("{}/{}", self.dice.choose(&self.directories).clone(), self.fresh("dir"));
        let mut properties = self.owned(json!({"ensure": "directory"}));
        properties["mode"] = json!(self.dice.choose(&["0755", "0700", "0711", "1777", "02755", "u=rwx,g=rxs,o="]));
        // The type creates missing directories above.
        if self.add("file", &path, properties) {
            self.directories.push(path);
        }
    }

    fn gone(&mut self) {
        let name = self.dice.choose(&["given/old", "given/full", "given/link", "given/none", "given/dangling"]).to_string();
        let path = format!("{}/{name}", self.root);
        if self.made.iter().any(|made| made.properties["name"] == path) {
            return;
        }
        let force = name.ends_with("full") && self.dice.once_in(2);
        self.add("file", &path, if force { json!({"ensure": "absent", "force": true}) } else { json!({"ensure": "absent"}) });
    }

    fn line(&mut self) {
        let (name, line) = (self.fresh("line"), format!("key{} = {}", self.made.len(), self.dice.below(3)));
        let mut properties = json!({"line": line});
        if self.dice.once_in(3) {
            let path = self.path("lines");
            properties["path"] = json!(path);
            if self.dice.once_in(2) {
                properties["create"] = json!(true);
            }
        } else {
            properties["path"] = json!(self.dice.choose(&self.texts));
        }
        match self.dice.below(4) {
            0 => properties["match"] = json!(format!("^key{} ", self.made.len())),
            // Two resources with the same effect appear twice in the plan, and apply once.
            1 if !self.made.iter().any(|made| made.properties.get("line") == Some(&json!("first"))) => {
                properties = json!({"ensure": "absent", "line": "first", "path": properties["path"]});
            }
            2 => properties["after"] = json!("^second"),
            _ => {}
        }
        self.add("line", &name, properties);
    }

    fn symlink(&mut self) {
        let path = self.path("link");
        let target = *self.dice.choose(&["given/text", "/nowhere", "../up"]);
        self.add("symlink", &path, json!({ "target": target }));
    }

    fn archive(&mut self) {
        let name = self.fresh("app");
        let path = format!("{}/{name}.tar.gz", self.root);
        let file = *self.dice.choose(&["app.tar.gz", "app.tar.gz", "app.tar.gz", "none.tar.gz", "broken.tar.gz"]);
        self.surprising |= file != "app.tar.gz";
        let mut properties = json!({"ensure": "present", "url": format!("{}/{file}", self.url)});
        properties["owner"] = json!(self.owner.0.to_string());
        properties["group"] = json!(self.owner.1.to_string());
        if self.dice.once_in(2) {
            let into = format!("{}/{name}", self.root);
            properties["extract_parent"] = json!(into);
            properties["creates"] = json!(format!("{into}/app/run"));
            if self.dice.once_in(2) {
                properties["cleanup"] = json!(true);
            }
        }
        self.add("archive", &path, properties);
    }

    fn exec(&mut self) {
        let name = self.fresh("exec");
        let mark = format!("{}/{name}.mark", self.root);
        let touch = format!("echo x > {mark}");
        let mut properties = json!({"provider": "shell", "command": touch});
        let mut restless = false;
        match self.dice.below(9) {
            0 => properties["creates"] = json!(mark),
            1 => properties["unless"] = json!(format!("test -e {mark}")),
            2 => properties["onlyif"] = json!(format!("test ! -e {mark}")),
            3 => {
                properties["command"] = json!("echo no; exit 3");
                self.surprising = true;
            }
            4 => {
                properties =
                    json!({"provider": "shell", "command": format!("{touch}; exit 3"), "returns": [0, 3], "creates": mark});
            }
            5 => properties["refreshonly"] = json!(true),
            6 => properties = json!({"command": "true", "timeout": self.dice.choose(&["0", "0s", "1m"]), "onlyif": "false"}),
            7 => properties["logoutput"] = json!(true),
            _ => restless = true,
        }
        restless |= properties["logoutput"] == true;
        if self.dice.once_in(3) && !self.made.is_empty() {
            let earlier = self.dice.below(self.made.len());
            let of = self.made[earlier].reference.clone();
            restless |= self.restless.contains(&of);
            properties["subscribe"] = json!([of]);
        }
        self.add("exec", &name, properties);
        if restless {
            self.restless.extend(self.made.last().map(|made| made.reference.clone()));
        }
    }

    /// Adds a resource with the common properties. False when a condition excludes it.
    fn add(&mut self, kind: &'static str, name: &str, mut properties: Value) -> bool {
        properties["name"] = json!(name);
        let mut managed = true;
        match self.dice.below(14) {
            0 => {
                properties["control"] = json!({"if": "Data.yes == false"});
                managed = false;
            }
            1 => properties["control"] = json!({"if": "Data.yes", "unless": "1 > 2"}),
            _ => {}
        }
        let mut reference = format!("{kind}#{name}");
        if self.dice.once_in(5) {
            let alias = format!("alias{}", self.made.len());
            reference = format!("{kind}#{alias}");
            properties["alias"] = json!(alias);
        }
        if self.dice.once_in(4) && !self.made.is_empty() {
            let earlier = self.dice.below(self.made.len());
            properties["require"] = json!([self.made[earlier].reference]);
            // A directory that may not be made is missing for other resources.
            managed = false;
        }
        let in_the_way = name.contains("/nowhere/") && kind != "file";
        self.made.push(GeneratedResource { reference, kind, properties: properties.as_object().unwrap().clone() });
        managed && !in_the_way
    }

    /// Adds one mistake, and returns its name.
    fn add_mistake(&mut self) -> &'static str {
        let at = self.dice.below(self.made.len());
        let own = self.made[at].reference.clone();
        let mut require = |at: usize, reference: String| self.made[at].properties.insert("require".into(), json!([reference]));
        match self.dice.below(9) {
            0 => {
                require(at, own);
                "names itself"
            }
            1 => {
                require(at, "exec#never-heard-of".to_owned());
                "there is no such resource"
            }
            2 => {
                require(at, "exce#exec0".to_owned());
                "there is no resource type"
            }
            3 => {
                self.push("exec", "later", json!({"command": "true"}));
                self.made[at].properties.insert("require".into(), json!(["exec#later"]));
                "which comes later"
            }
            4 => {
                self.push("exec", "later", json!({"command": "true", "require": [own]}));
                self.made[at].properties.insert("require".into(), json!(["exec#later"]));
                "needs itself"
            }
            5 => {
                self.push("exec", "one", json!({"command": "true", "alias": "same"}));
                self.push("exec", "two", json!({"command": "true", "alias": "same"}));
                "is also the alias of exec#one"
            }
            6 => {
                let path = format!("{}/twice", self.root);
                for content in ["one", "two"] {
                    let mut properties = self.owned(json!({"ensure": "present", "content": content}));
                    properties["mode"] = json!("0644");
                    self.push("file", &path, properties);
                }
                "disagree about content"
            }
            7 => {
                let child = *self.dice.choose(&["missing.yaml", "invalid.yaml", "manifest.yaml"]);
                self.push("apply", child, json!({}));
                "manifest"
            }
            _ => {
                let wrong =
                    [("colour", json!("red")), ("alias", json!(["x"])), ("require", json!(["x"])), ("provider", json!({}))];
                let (property, value) = self.dice.choose(&wrong).clone();
                self.made[at].properties.insert(property.to_owned(), value);
                property
            }
        }
    }

    fn push(&mut self, kind: &'static str, name: &str, mut properties: Value) {
        properties["name"] = json!(name);
        let properties = properties.as_object().unwrap().clone();
        self.made.push(GeneratedResource { reference: format!("{kind}#{name}"), kind, properties });
    }
}
