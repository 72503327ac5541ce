package admin

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/paddlempi/paddlempi/gocore/status"
)

// authority writes a CA and a certificate of 127.0.0.1 by it into files.
func authority(t *testing.T) TLS {
	folder := t.TempDir()
	files := TLS{Cert: filepath.Join(folder, "cert"), Key: filepath.Join(folder, "key"), CA: filepath.Join(folder, "ca")}
	write := func(path, kind string, der []byte) {
		require.NoError(t, os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600))
	}
	template := func(name string, ca bool) *x509.Certificate {
		return &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotAfter: time.Now().Add(time.Hour), IsCA: ca,
			BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
			ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	}
	root, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	ca := template("ca", true)
	der, err := x509.CreateCertificate(rand.Reader, ca, ca, &root.PublicKey, root)
	require.NoError(t, err)
	write(files.CA, "CERTIFICATE", der)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	der, err = x509.CreateCertificate(rand.Reader, template("rank", false), ca, &key.PublicKey, root)
	require.NoError(t, err)
	write(files.Cert, "CERTIFICATE", der)
	der, err = x509.MarshalPKCS8PrivateKey(key)
	require.NoError(t, err)
	write(files.Key, "PRIVATE KEY", der)
	return files
}

func TestTLS(t *testing.T) {
	ours, others := authority(t), authority(t)
	alone := TLS{Cert: ours.Cert, Key: ours.Key}
	for name, c := range map[string]struct {
		server, client TLS
		works          bool
	}{
		"both show certificates":         {ours, ours, true},
		"the server alone":               {alone, TLS{CA: ours.CA}, true},
		"the client shows none":          {ours, TLS{CA: ours.CA}, false},
		"the client's is of another CA":  {ours, TLS{Cert: others.Cert, Key: others.Key, CA: ours.CA}, false},
		"the server's is of another CA":  {alone, TLS{CA: others.CA}, false},
		"a client without TLS":           {ours, TLS{}, false},
		"a server without TLS":           {TLS{}, ours, false},
		"a CA that the host has not got": {alone, alone, false},
	} {
		t.Run(name, func(t *testing.T) {
			b := &backend{}
			s, _ := start(t, b, func(o *Options) { o.TLS = c.server })
			client, err := Dial(s.Address(), token, c.client)
			require.NoError(t, err)
			defer client.Close()
			// It waits for room, which is what the server's answer looks like to one without TLS.
			ctx, want := within(t), status.PeerLeft
			if c.server.on() && !c.client.on() {
				short, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
				defer cancel()
				ctx, want = short, status.Timeout
			}
			err = client.Complete(ctx, 0)
			if c.works {
				assert.NoError(t, err)
				assert.EqualValues(t, 1, b.asked.Load())
				return
			}
			assert.Equal(t, want, status.CodeOf(err), "%v", err)
			assert.Zero(t, b.asked.Load())
		})
	}
	require.NoError(t, os.WriteFile(others.CA, []byte("rubbish"), 0o600))
	_, err := Dial("h:1", token, TLS{CA: others.CA})
	assert.ErrorContains(t, err, "has no certificate in PEM")
}
