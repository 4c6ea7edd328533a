use std::fs;
use std::io::ErrorKind;
use std::os::unix::net::UnixStream;
use std::path::Path;

use super::super::{Cancel, Output, ProcessCommand, Runner, SystemRunner};
use super::*;

/// Three directories with a file each: one writable, one readable, one inaccessible.
fn place() -> tempfile::TempDir {
    let place = tempfile::tempdir().unwrap();
    for name in ["write", "read", "state"] {
        fs::create_dir(place.path().join(name)).unwrap();
        fs::write(place.path().join(name).join("file"), name).unwrap();
    }
    place
}

fn files(place: &Path) -> Confinement {
    let files = AccessibleFiles { write: vec![place.join("write"), place.join("none")], read: vec![place.join("read")] };
    Confinement { files: Some(files), ..Confinement::default() }
}

/// Calls a function on a confined thread.
fn confined<T: Send>(confinement: &Confinement, act: impl FnOnce(Confined) -> T + Send) -> T {
    std::thread::scope(|scope| scope.spawn(|| act(confinement.apply().unwrap())).join().unwrap())
}

fn sh(script: &str) -> Output {
    SystemRunner::new(None).run(&ProcessCommand::new("/bin/sh", ["-c", script]), &Cancel::default(), None).unwrap()
}

fn is_denied<T>(result: std::io::Result<T>) -> bool {
    result.is_err_and(|error| error.kind() == ErrorKind::PermissionDenied)
}

#[test]
fn the_kernel_is_queried_on_its_own_thread() {
    let kernel = kernel_features().unwrap();
    assert!(kernel.enforces(ConfinementPart::Files), "{kernel:?}");
    assert!(!KernelFeatures { landlock: 3 }.enforces(ConfinementPart::Network));
    assert!(KernelFeatures { landlock: 0 }.enforces(ConfinementPart::Sockets));
    fs::read("/etc/shadow").unwrap();
}

#[test]
fn files_are_in_reach_only_where_it_is_allowed() {
    let place = place();
    let path = |below: &str| place.path().join(below);
    confined(&files(place.path()), |confined| {
        assert_eq!(confined.write.unwrap(), [path("write")]);
        fs::write(path("write/new"), "x").unwrap();
        fs::create_dir(path("write/sub")).unwrap();
        fs::rename(path("write/new"), path("write/sub/new")).unwrap();
        assert_eq!(fs::read_to_string(path("read/file")).unwrap(), "read");
        assert!(is_denied(fs::write(path("read/file"), "x")));
        assert!(is_denied(fs::write(path("beside"), "x")));
        assert!(is_denied(fs::read(path("state/file"))));
        assert!(is_denied(fs::read_dir(path("state"))));
        assert!(is_denied(fs::remove_file(path("state/file"))));
        assert!(is_denied(fs::File::options().append(true).open(path("state/file"))));
        assert!(is_denied(fs::read("/etc/shadow")));
        assert!(is_denied(fs::read_dir("/root")));
        assert!(is_denied(fs::write("/etc/ensign-was-here", "x")));
        // Through a link, and through a file with two names.
        std::os::unix::fs::symlink(path("state"), path("write/link")).unwrap();
        assert!(is_denied(fs::write(path("write/link/file"), "x")));
        assert!(fs::hard_link(path("state/file"), path("write/hard")).is_err());
        assert!(fs::rename(path("state/file"), path("write/moved")).is_err());
        assert!(fs::read("/etc/passwd").is_ok_and(|text| !text.is_empty()));
        fs::write("/dev/null", "x").unwrap();
    });
    assert_eq!(fs::read_to_string(path("state/file")).unwrap(), "state");
    fs::write(path("state/file"), "still free").unwrap();
}

#[test]
fn a_swapped_directory_leads_nowhere() {
    let place = place();
    let (own, other) = (place.path().join("write/own"), place.path().join("state"));
    fs::create_dir(&own).unwrap();
    confined(&files(place.path()), |_| {
        // The check was made, and then the directory was swapped.
        fs::remove_dir(&own).unwrap();
        std::os::unix::fs::symlink(&other, &own).unwrap();
        assert!(is_denied(fs::write(own.join("written"), "x")));
    });
    assert!(!other.join("written").exists());
}

#[test]
fn started_programs_are_confined_too() {
    let place = place();
    let outside = std::process::id();
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let socket = place.path().join("read/socket");
    let _listens = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let script = |what: &str| what.replace("PLACE", place.path().to_str().unwrap()).replace("PID", &outside.to_string());
    confined(&files(place.path()), |_| {
        for allowed in [
            "echo x > PLACE/write/a; cat PLACE/write/a PLACE/read/file",
            "cp /bin/true PLACE/write/t; PLACE/write/t",
            "id -un 0; getent hosts localhost; cat /proc/self/status > /dev/null",
            "sleep 30 & kill $!",
        ] {
            let output = sh(&script(allowed));
            assert_eq!(output.code, 0, "{allowed}: {output:?}");
        }
        for denied in [
            "echo x > PLACE/state/file",
            "echo x > /etc/ensign-was-here",
            "cat PLACE/state/file",
            "cat /etc/shadow",
            "ls /root",
            "cat /proc/self/root/etc/shadow",
            "cat /proc/1/root/etc/shadow",
            "cat /proc/PID/environ",
            "cat /proc/PID/fd/0",
            "readlink /proc/PID/fd/0",
            "nsenter -t 1 -m true",
            "unshare -m true",
            "mount -t tmpfs none PLACE/write",
            "mount --bind / PLACE/write",
            "mknod PLACE/write/device b 8 0",
            "chroot PLACE/write /t",
            "kill -0 PID",
            "kill -STOP 1",
            "echo 1 > /proc/sys/vm/drop_caches",
            "insmod PLACE/read/file",
        ] {
            let output = sh(&script(denied));
            assert_ne!(output.code, 0, "{denied}: {output:?}");
        }
        assert!(is_denied(UnixStream::connect(&socket)));
        std::net::TcpStream::connect(port.local_addr().unwrap()).unwrap();
    });
    assert_eq!(fs::read_to_string(place.path().join("state/file")).unwrap(), "state");
    UnixStream::connect(&socket).unwrap();
}

#[test]
fn no_program_and_no_connection() {
    let place = place();
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let to = port.local_addr().unwrap();
    let none = Confinement { no_programs: true, no_network: true, ..Confinement::default() };
    confined(&none, |confined| {
        assert_eq!(confined.write, None);
        let run = SystemRunner::new(None).run(&ProcessCommand::new("/bin/true", [""; 0]), &Cancel::default(), None);
        assert!(run.is_err(), "{run:?}");
        assert!(is_denied(std::net::TcpStream::connect(to)));
        assert!(is_denied(std::net::TcpListener::bind("127.0.0.1:0")));
        fs::write(place.path().join("state/file"), "files are free").unwrap();
    });
    let all = Confinement { no_programs: true, ..files(place.path()) };
    confined(&all, |_| {
        fs::copy("/etc/passwd", place.path().join("write/copy")).unwrap();
        assert!(SystemRunner::new(None).run(&ProcessCommand::new("/bin/true", [""; 0]), &Cancel::default(), None).is_err());
    });
    assert!(Confinement::default().is_empty() && Confinement::default().parts().is_empty());
    assert!(none.parts().contains(&ConfinementPart::Network) && !none.parts().contains(&ConfinementPart::Files));
}

#[test]
fn local_sockets_stay_where_they_are_wanted() {
    let place = place();
    let socket = place.path().join("read/socket");
    let _listens = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let wanted = Confinement { local_sockets: true, ..files(place.path()) };
    confined(&wanted, |_| UnixStream::connect(&socket).map(drop).unwrap());
    assert!(!wanted.parts().contains(&ConfinementPart::Sockets));
}

#[test]
fn a_worker_works_outside() {
    let place = place();
    let file = place.path().join("state/file");
    let (worker, work) = Worker::new();
    std::thread::scope(|scope| {
        let inside = scope.spawn(|| {
            let worker = worker;
            files(place.path()).apply().unwrap();
            let (path, other) = (file.clone(), file.clone());
            worker.post(move || fs::write(path, "posted").unwrap()).unwrap();
            let read = worker.run(move || fs::read_to_string(other).unwrap()).unwrap();
            (read, worker.run(|| std::panic::resume_unwind(Box::new(()))), worker.run(|| 1))
        });
        for one in work {
            let _broke = std::panic::catch_unwind(std::panic::AssertUnwindSafe(one));
        }
        let (read, broken, after): (_, Result<(), WorkerGone>, _) = inside.join().unwrap();
        assert_eq!((read.as_str(), broken, after), ("posted", Err(WorkerGone), Ok(1)));
    });
}
