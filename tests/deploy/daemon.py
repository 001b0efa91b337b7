"""A built gradwired as a child process, and certificates for it."""
import os
import re
import signal
import subprocess
import threading
import urllib.error
import urllib.request

from table import Failed, need, run
from tools import daemon_folder

START_SECONDS = 20
STOP_SECONDS = 60


class Daemon:
    """Serves from `with` on; `address` and `url` are what it prints."""

    def __init__(self, flags):
        self._command = [daemon_folder() / "gradwired", *flags]
        self.address = self.url = None

    def __enter__(self):
        variables = {key: value for key, value in os.environ.items() if not key.startswith("GRADWIRE_")}
        self._child = subprocess.Popen(self._command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                       env=variables)
        # A pipe that nobody reads would stop the daemon once it is full.
        self._log = []
        self._reader = threading.Thread(target=lambda: self._log.extend(self._child.stderr), daemon=True)
        self._reader.start()
        watchdog = threading.Timer(START_SECONDS, self._child.kill)
        watchdog.start()
        for line in self._child.stdout:
            # Of several addresses, the first.
            if (found := re.match(r"  grpc  (\S+)", line)) and not self.address:
                self.address = found[1].replace("0.0.0.0", "127.0.0.1")
            if found := re.match(r"  http  (\S+)", line):
                self.url = found[1].rstrip("/").replace("0.0.0.0", "127.0.0.1")
            if self.address and self.url:
                break
        watchdog.cancel()
        if not (self.address and self.url):
            self.stop()
            raise Failed(f"{' '.join(map(str, self._command))} does not serve: {''.join(self._log[-5:])}")
        return self

    def __exit__(self, *_):
        if self._child.poll() is None:
            self.stop()

    def get(self, path, token=None, timeout=10):
        """Status and text of a page."""
        request = urllib.request.Request(self.url + path)
        if token:
            request.add_header("Authorization", f"Bearer {token}")
        try:
            with urllib.request.urlopen(request, timeout=timeout) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, ""

    def stop(self):
        """SIGTERM; what it exits with."""
        self._child.send_signal(signal.SIGTERM)
        try:
            return self._child.wait(timeout=STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
            raise


def make_certificates(folder):
    """ca.crt, and tls.crt with tls.key for localhost, in `folder`."""
    def openssl(*arguments):
        run("openssl", *arguments, timeout=60, cwd=folder)

    openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", "ca.key",
            "-out", "ca.crt", "-subj", "/CN=test", "-days", "2")
    openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", "tls.key",
            "-out", "tls.csr", "-subj", "/CN=gradwire")
    with open(os.path.join(folder, "names"), "w", encoding="utf-8") as file:
        file.write("subjectAltName=IP:127.0.0.1,DNS:localhost\nextendedKeyUsage=serverAuth,clientAuth\n")
    openssl("x509", "-req", "-in", "tls.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-out", "tls.crt",
            "-days", "2", "-extfile", "names")
    need(os.path.exists(os.path.join(folder, "tls.crt")), "openssl made no certificate")
