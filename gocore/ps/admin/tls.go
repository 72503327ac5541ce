package admin

import (
	"crypto/tls"
	"crypto/x509"
	"os"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/paddlempi/paddlempi/gocore/status"
)

// on tells whether connections are encrypted.
func (t TLS) on() bool { return t != TLS{} }

// server returns the credentials of a server. It reads the files.
func (t TLS) server() (credentials.TransportCredentials, error) {
	if !t.on() {
		return insecure.NewCredentials(), nil
	}
	if t.Cert == "" {
		return nil, status.New(status.Argument, "the parameter server's TLS needs a certificate: cert is empty")
	}
	config, err := t.config()
	if err != nil {
		return nil, err
	}
	if config.RootCAs != nil {
		config.ClientCAs, config.ClientAuth = config.RootCAs, tls.RequireAndVerifyClientCert
	}
	return credentials.NewTLS(config), nil
}

// client returns the credentials of a client. It reads the files.
func (t TLS) client() (credentials.TransportCredentials, error) {
	if !t.on() {
		return insecure.NewCredentials(), nil
	}
	config, err := t.config()
	if err != nil {
		return nil, err
	}
	return credentials.NewTLS(config), nil
}

func (t TLS) config() (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS13}
	if (t.Cert == "") != (t.Key == "") {
		return nil, status.New(status.Argument, "the parameter server's TLS needs both a certificate and its key: cert=%q, key=%q", t.Cert, t.Key)
	}
	if t.Cert != "" {
		pair, err := tls.LoadX509KeyPair(t.Cert, t.Key)
		if err != nil {
			return nil, status.New(status.Argument, "the parameter server's TLS: cert=%q with key=%q: %v", t.Cert, t.Key, err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	if t.CA != "" {
		text, err := os.ReadFile(t.CA)
		if err != nil {
			return nil, status.New(status.Argument, "the parameter server's TLS: ca=%q: %v", t.CA, err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(text) {
			return nil, status.New(status.Argument, "the parameter server's TLS: ca=%q has no certificate in PEM", t.CA)
		}
	}
	return config, nil
}
