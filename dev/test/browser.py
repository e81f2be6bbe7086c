"""A headless Chromium, told what to do through its pipe (DevTools protocol), or Firefox, through its socket (Marionette): nothing but
Python's library."""

import atexit
import base64
import json
import os
import shutil
import socket
import subprocess
import tempfile
import time


def find():
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Browser:
    """The functions that both browsers share."""

    def start(self, *command, **how):
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **how)
        atexit.register(self.process.kill)  # if a test ends early

    def until(self, script, seconds=60):
        end = time.time() + seconds
        while not self.run(script):
            if time.time() > end:
                raise RuntimeError(f"after {seconds} s not true: {script}")
            time.sleep(0.05)

    def close(self):
        self.process.terminate()
        self.process.wait()
        shutil.rmtree(self.profile, ignore_errors=True)


class Chromium(Browser):
    """One page. `errors` holds all console messages above the level of information."""

    def __init__(self, width=1000, height=900, dark=False):
        self.errors, self.requests, self.number = [], [], 0
        self.profile = tempfile.mkdtemp()
        there, ours = os.pipe()
        mine, theirs = os.pipe()

        def pipes():  # the browser reads from 3 and writes to 4
            low, high = os.dup(there), os.dup(theirs)
            os.dup2(low, 3)
            os.dup2(high, 4)

        self.start(find(), "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
                   "--remote-debugging-pipe", f"--user-data-dir={self.profile}", "about:blank", preexec_fn=pipes, close_fds=False)
        os.close(there)
        os.close(theirs)
        self.out, self.input = os.fdopen(ours, "wb", buffering=0), os.fdopen(mine, "rb", buffering=0)
        self.left, self.session = b"", None
        targets = self.call("Target.getTargets")["targetInfos"]
        target = next(t["targetId"] for t in targets if t["type"] == "page")
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(domain + ".enable")
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])

    def call(self, method, **parameters):
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        self.out.write(json.dumps(message).encode() + b"\0")
        while True:
            answer = self.receive()
            if answer.get("id") == self.number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]

    def receive(self):
        while b"\0" not in self.left:
            part = os.read(self.input.fileno(), 1 << 20)
            if not part:
                raise RuntimeError("the browser ended")
            self.left += part
        text, self.left = self.left.split(b"\0", 1)
        message = json.loads(text)
        what, told = message.get("method"), message.get("params", {})
        if what == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(told["exceptionDetails"])[:600])
        if what == "Log.entryAdded" and told["entry"]["level"] in ("error", "warning"):
            self.errors.append(told["entry"]["text"])
        if what == "Runtime.consoleAPICalled" and told["type"] in ("error", "warning", "assert"):
            self.errors.append(json.dumps(told["args"]))
        if what == "Page.javascriptDialogOpening":
            self.errors.append("a dialog: " + told["message"])
        if what == "Network.requestWillBeSent":
            self.requests.append(told["request"]["url"])
        return message

    def open(self, path):
        self.call("Page.navigate", url="file://" + os.path.abspath(path))
        self.until("document.readyState === 'complete'")

    def run(self, script):
        result = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise RuntimeError(json.dumps(result["exceptionDetails"])[:600])
        return result["result"].get("value")

    def key(self, key):
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key)

    def screenshot(self, path, whole=True):
        data = self.call("Page.captureScreenshot", captureBeyondViewport=whole)["data"]
        with open(path, "wb") as file:
            file.write(base64.b64decode(data))


class Firefox(Browser):
    """The same interface for Firefox."""

    keys = {"ArrowLeft": "\ue012", "ArrowRight": "\ue014"}

    def __init__(self, width=1000, height=900, dark=False):
        self.number, self.profile = 0, tempfile.mkdtemp()
        with open(os.path.join(self.profile, "user.js"), "w", encoding="utf-8") as file:
            for name, value in (("marionette.port", 0), ("layout.css.prefers-color-scheme.content-override", 0 if dark else 1)):
                file.write(f'user_pref("{name}", {value});\n')
        self.start(shutil.which("firefox-esr"), "--headless", "--marionette", "--remote-allow-system-access",
                   "--profile", self.profile)
        port, end = os.path.join(self.profile, "MarionetteActivePort"), time.time() + 120
        while not os.path.exists(port):
            if time.time() > end or self.process.poll() is not None:
                raise RuntimeError("Firefox did not start")
            time.sleep(0.1)
        with open(port, encoding="ascii") as file:
            self.socket = socket.create_connection(("127.0.0.1", int(file.read())))
        self.input = self.socket.makefile("rb")
        self.receive()
        self.call("WebDriver:NewSession", capabilities={})
        self.call("WebDriver:SetWindowRect", width=width, height=height)

    def call(self, method, **parameters):
        self.number += 1
        message = json.dumps([0, self.number, method, parameters]).encode()
        self.socket.sendall(b"%d:%s" % (len(message), message))
        _, _, error, result = self.receive()
        if error:
            raise RuntimeError(f"{method}: {error}")
        return result

    def receive(self):
        size = b""
        while not size.endswith(b":"):
            size += self.input.read(1)
        return json.loads(self.input.read(int(size[:-1])))

    def open(self, path):
        self.call("WebDriver:Navigate", url="file://" + os.path.abspath(path))

    def run(self, script):
        return self.call("WebDriver:ExecuteScript", script=f"return ({script})", args=[])["value"]

    @property
    def errors(self):
        self.call("Marionette:SetContext", value="chrome")
        found = self.call("WebDriver:ExecuteScript", args=[], script="""return Services.console.getMessageArray().filter(m =>
            m instanceof Ci.nsIScriptError && /^(file|blob):/.test(m.sourceName)).map(String)""")["value"]
        self.call("Marionette:SetContext", value="content")
        return found

    @property
    def requests(self):
        return self.run("[location.href, ...performance.getEntriesByType('resource').map(entry => entry.name)]")

    def key(self, key):
        actions = [{"type": kind, "value": self.keys[key]} for kind in ("keyDown", "keyUp")]
        self.call("WebDriver:PerformActions", actions=[{"type": "key", "id": "keys", "actions": actions}])

    def screenshot(self, path, whole=True):
        with open(path, "wb") as file:
            file.write(base64.b64decode(self.call("WebDriver:TakeScreenshot", full=whole)["value"]))
