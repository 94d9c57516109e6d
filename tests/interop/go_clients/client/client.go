// Package client has what is the same in every client of Go: see tests/interop/__init__.py.
package client

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"io"
	"log"
	"os"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
)

// Report is what a client prints.
type Report struct {
	Client     string   `json:"client"`
	Version    string   `json:"version"`
	Codecs     []string `json:"codecs"`
	Partitions int      `json:"partitions"`
	Produced   int      `json:"produced"`
	Consumed   int      `json:"consumed"`
	Committed  int64    `json:"committed"`
	SHA256     string   `json:"sha256"`
}

// Print completes the report by the lines that were consumed, and by the version of the library's module.
func (report *Report) Print(module string, consumed []string) {
	info, _ := debug.ReadBuildInfo()
	for _, dependency := range info.Deps {
		if dependency.Path == module {
			report.Version = strings.TrimPrefix(dependency.Version, "v")
		}
	}
	report.Consumed = len(consumed)
	slices.Sort(consumed)
	sum := sha256.Sum256([]byte(strings.Join(consumed, "\n")))
	report.SHA256 = hex.EncodeToString(sum[:])
	Check(json.NewEncoder(os.Stdout).Encode(report))
}

// Arguments returns those of the command line.
func Arguments() (brokers []string, topic, group, id string, partitions int32) {
	number, err := strconv.ParseInt(os.Args[5], 10, 32)
	Check(err)
	return strings.Split(os.Args[1], ","), os.Args[2], os.Args[3], os.Args[4], int32(number)
}

// Lines returns those of stdin.
func Lines() []string {
	data, err := io.ReadAll(os.Stdin)
	Check(err)
	return strings.Split(strings.TrimSuffix(string(data), "\n"), "\n")
}

// TLS returns the configuration that trusts TLS_CA, or nil where that is not set.
func TLS() *tls.Config {
	file := os.Getenv("TLS_CA")
	if file == "" {
		return nil
	}
	pem, err := os.ReadFile(file)
	Check(err)
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		log.Fatalf("%s holds no certificate", file)
	}
	return &tls.Config{RootCAs: pool}
}

// Check ends the program where there is an error.
func Check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
