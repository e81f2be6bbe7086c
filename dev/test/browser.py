"""A headless Chromium, told what to do through its pipe (DevTools protocol): nothing but Python's library."""

import base64
import json
import os
import shutil
import subprocess
import tempfile
import time


def find():
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Browser:
    """One page. Everything that its console says above the level of information is in `errors`."""

    def __init__(self, width=1000, height=900, dark=False):
        self.errors, self.requests, self.number = [], [], 0
        self.profile = tempfile.mkdtemp()
        there, ours = os.pipe()
        mine, theirs = os.pipe()

        def pipes():  # 3: what the browser reads, 4: what it writes
            low, high = os.dup(there), os.dup(theirs)
            os.dup2(low, 3)
            os.dup2(high, 4)

        self.process = subprocess.Popen(
            [find(), "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
             "--remote-debugging-pipe", f"--user-data-dir={self.profile}", "about:blank"],
            preexec_fn=pipes, close_fds=False, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
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

    def until(self, script, seconds=60):
        end = time.time() + seconds
        while not self.run(script):
            if time.time() > end:
                raise RuntimeError(f"after {seconds} s not true: {script}")
            time.sleep(0.05)

    def key(self, key):
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key)

    def screenshot(self, path, whole=True):
        data = self.call("Page.captureScreenshot", captureBeyondViewport=whole)["data"]
        with open(path, "wb") as file:
            file.write(base64.b64decode(data))

    def close(self):
        self.process.terminate()
        self.process.wait()
        shutil.rmtree(self.profile, ignore_errors=True)
